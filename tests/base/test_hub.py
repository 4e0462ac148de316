"""The hub while it can be reached, else its cache."""

import socket
import sys
import urllib.request
from types import SimpleNamespace

import pytest

from brimful.base import hub

constants = pytest.importorskip("huggingface_hub.constants", reason="needs the extra brimful[text]")


@pytest.mark.parametrize(
    ("name", "is_id"),
    [
        *((name, True) for name in ("gpt2", "a/b", "a.b/c~d")),
        *((name, False) for name in ("", "a/", "/a", "./a", "~/a", "a/.b", "a\\b", "a/b\\c", "a/b/c")),
    ],
)
def test_a_path_is_not_an_id(name, is_id):
    """A slip in a path would be looked for on the hub, and the wrong place named."""
    assert hub.looks_like_hub_id(name) == is_id


@pytest.mark.parametrize(
    ("fault", "is_found"),
    [("", True), ("online", False), ("own cache", False), ("no commit", False), ("empty", False), ("no files", False)],
)
def test_files_of_the_cache_are_used_where_the_hub_is_not_asked(fault, is_found, tmp_path, monkeypatch):
    """A machine that is online may have newer ones."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", fault != "online")
    monkeypatch.setenv("TRANSFORMERS_CACHE", "/own" if fault == "own cache" else "")
    snapshot = tmp_path / "models--a--b" / "snapshots" / "c0"
    snapshot.mkdir(parents=True)
    if fault != "no commit":
        (tmp_path / "models--a--b" / "refs").mkdir()
        commit = {"empty": "", "no files": "c1"}.get(fault, "c0")
        (tmp_path / "models--a--b" / "refs" / "main").write_text(commit)
    assert hub.offline_snapshot("a/b") == (str(snapshot) if is_found else None)
    assert hub.offline_snapshot("./a") is None


@pytest.mark.parametrize(("is_offline", "is_reachable"), [(False, True), (False, False), (True, True)])
def test_libraries_use_their_caches_while_the_hub_is_away(is_offline, is_reachable, monkeypatch):
    """Each asks for twenty seconds otherwise; the one of data sets has a switch of its own."""
    data_sets, others = SimpleNamespace(HF_HUB_OFFLINE=is_offline), SimpleNamespace()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", is_offline)
    monkeypatch.setattr(hub, "_reachable", lambda endpoint: is_reachable and not is_offline)
    for module in (data_sets, others):
        monkeypatch.setitem(sys.modules, "datasets.config", module)
        with hub.offline_if_unreachable() as is_there:
            assert is_there == (is_reachable and not is_offline)
            is_switched = is_offline or (module is data_sets and not is_there)
            switches = [module.HF_HUB_OFFLINE for module in (constants, data_sets)]
            assert switches == [not is_there, is_switched]
        assert (constants.HF_HUB_OFFLINE, data_sets.HF_HUB_OFFLINE, vars(others)) == (is_offline, is_offline, {})


def test_a_connection_tells_whether_the_hub_is_there(monkeypatch):
    """At the port of its address, or of its protocol; a proxy may take no other way, and is not asked."""
    monkeypatch.setattr(urllib.request, "getproxies", dict)
    monkeypatch.delenv("ALL_PROXY", raising=False)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"http://127.0.0.1:{server.getsockname()[1]}"
        assert hub._reachable(address)
    assert not hub._reachable(address)
    asked = []

    def refuse(address, timeout):
        asked.append(address)
        raise OSError

    monkeypatch.setattr(socket, "create_connection", refuse)
    assert not any(map(hub._reachable, ("https://a", "http://a", "https://a:8080/b")))
    assert asked == [("a", 443), ("a", 80), ("a", 8080)]
    monkeypatch.setenv("ALL_PROXY", "socks5://b")
    assert hub._reachable("https://a")
    monkeypatch.delenv("ALL_PROXY")
    monkeypatch.setattr(urllib.request, "getproxies", lambda: {"https": "http://b"})
    assert hub._reachable("https://a")
    assert len(asked) == 3
