"""A program ends at a signal; what it was told to ignore, and what it forks, is left alone."""

import os
import signal
import subprocess
import sys
import threading

import pytest

from brimful.base.stopping import STOPPED, end_at_signals

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals as POSIX has them")


def run(code, **options):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=20, **options)


@pytest.mark.parametrize(("signum", "code"), [("SIGINT", 130), ("SIGTERM", 143)])
def test_a_signal_ends_the_program_whatever_it_does_and_what_was_registered_comes_first(signum, code):
    """Without it nothing hears a signal while the main thread is in C, and workers are left over."""
    outcome = run(
        "import hashlib, os, signal, threading; from brimful.base.stopping import at_the_end, end_at_signals\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "end_at_signals(); at_the_end(lambda: os.write(1, b'others ended'))\n"
        f"threading.Timer(0.2, os.kill, (os.getpid(), signal.{signum})).start()\n"
        "hashlib.pbkdf2_hmac('sha256', b'', b'', 1 << 30)"
    )
    assert (outcome.returncode, outcome.stdout, outcome.stderr) == (code, "others ended", STOPPED + "\n")


@pytest.mark.parametrize("signum", ["SIGINT", "SIGTERM"])
def test_a_program_that_keeps_the_interpreter_is_killed(signum):
    """Without it Ctrl-C waits for a tokenizer that loads, half a minute on a busy machine: no thread of Python hears it."""
    outcome = run(
        "import os, signal, subprocess; from brimful.base.stopping import end_at_signals\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "end_at_signals()\n"
        f"subprocess.Popen(['sh', '-c', 'sleep 0.2; kill -{signum[3:]} $PPID'])\n"
        "sum(range(1 << 45))"
    )
    assert (outcome.returncode, outcome.stderr) == (-signal.SIGKILL, STOPPED + "\n")


def test_what_watches_a_program_ends_with_it_and_takes_other_signals_for_none():
    """Without it a pipe that reads the program's output waits for ever, or a child that ends would end the program."""
    outcome = run(
        "import os, signal, time; from brimful.base.stopping import end, end_at_signals\n"
        "signal.signal(signal.SIGCHLD, lambda *_: None)\n"
        "end_at_signals(); os.kill(os.getpid(), signal.SIGCHLD)\n"
        "sum(range(1 << 26)); print('goes on')\n"
        "end()"
    )
    assert (outcome.returncode, outcome.stdout, outcome.stderr) == (0, "goes on\n", "")


def test_ending_others_cannot_hang():
    """Without it the second Ctrl-C would wait for what the first one waits for."""
    outcome = run(
        "import os, signal, time; from brimful.base.stopping import at_the_end, end_at_signals\n"
        "end_at_signals(); at_the_end(lambda: time.sleep(1000)); os.kill(os.getpid(), signal.SIGTERM); time.sleep(1000)"
    )
    assert (outcome.returncode, outcome.stderr) == (143, STOPPED + "\n")


def test_a_process_that_is_just_started_is_known_to_those_that_end_it():
    """Without it a server of workers is left over, and the end waits a second for a lock that is never released."""
    outcome = run(
        "import os, signal, threading; from brimful.base.stopping import at_the_end, end_at_signals, starting_a_process\n"
        "lock, processes = threading.Lock(), []\n"
        "end_at_signals(); at_the_end(lambda: os.write(1, f'{lock.acquire(timeout=0.5)} {processes}'.encode()))\n"
        "with starting_a_process(), lock:\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "    processes.append(1)\n"
        "print('goes on')"
    )
    assert (outcome.returncode, outcome.stdout, outcome.stderr) == (143, "True [1]", STOPPED + "\n")


def test_the_line_of_a_stopped_program_does_not_begin_within_a_bar():
    """On a terminal a bar has the line; in a log it has not."""
    master, slave = os.openpty()
    code = "from brimful.base.stopping import _say_stopped; _say_stopped()"
    subprocess.run([sys.executable, "-c", code], stderr=slave, check=True)
    os.close(slave)
    assert os.read(master, 1000).split(b"\r\n") == [b"", STOPPED.encode(), b""]
    os.close(master)


def test_an_ignored_signal_stays_ignored():
    """Without it a job under nohup, or in the background of a script, ends at a Ctrl-C elsewhere."""
    outcome = run(
        "import os, signal; from brimful.base.stopping import end_at_signals\n"
        "signal.signal(signal.SIGINT, signal.SIG_IGN); end_at_signals(); os.kill(os.getpid(), signal.SIGINT)\n"
        "print('goes on')"
    )
    assert (outcome.returncode, outcome.stdout) == (0, "goes on\n")


def test_a_forked_process_ends_alone():
    """Without it a library that ends its forked helper by SIGTERM would end the program."""
    outcome = run(
        "import os, signal, time; from brimful.base.stopping import end_at_signals\n"
        "end_at_signals(); child = os.fork()\n"
        "if not child: os.kill(os.getpid(), signal.SIGTERM); time.sleep(1000)\n"
        "assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGTERM; time.sleep(0.3); print('goes on')"
    )
    assert (outcome.returncode, outcome.stdout) == (0, "goes on\n")


def test_a_forked_process_that_stays_does_not_keep_the_output_open(tmp_path):
    """Without it a pipe that reads the program's output waits for a server that the program left behind."""
    code = (
        "import os, sys, time; from brimful.base.stopping import end_at_signals\n"
        "end_at_signals()\n"
        "if not os.fork():\n"
        "    os.closerange(0, 3)\n"
        "    while not os.path.exists(sys.argv[1]): time.sleep(0.01)\n"
        "    os._exit(0)\n"
        "print('over')"
    )
    try:
        arguments = [sys.executable, "-c", code, tmp_path / "end"]
        assert subprocess.run(arguments, stdout=subprocess.PIPE, timeout=20, check=True).stdout == b"over\n"
    finally:
        (tmp_path / "end").touch()


def test_outside_the_main_thread_nothing_is_changed():
    """Without it a command that is run inside of a caller's thread would raise ValueError, or take the caller's Ctrl-C."""
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=end_at_signals)
    thread.start()
    thread.join()
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
