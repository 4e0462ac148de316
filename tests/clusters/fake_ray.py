"""A cluster in this process with the interface of Ray that brimful uses, whose workers die as a test says."""

from types import SimpleNamespace


class FakeRayError(Exception):
    """Ray's base of errors: a worker that does not answer."""


class FakeRay:
    """Answers come one a wait, the oldest first.

    Args:
        cores: of the cluster.
        deadly: by task, how often a worker dies at it.
        stillborn: actors that die before they start.
    """

    exceptions = SimpleNamespace(RayError=FakeRayError)

    def __init__(self, cores=2, deadly=None, stillborn=0):
        self.cores, self.deadly, self.stillborn = cores, dict(deadly or {}), stillborn
        self.killed, self.actors, self.calls = [], [], []

    def is_initialized(self):
        return True

    def cluster_resources(self):
        return {"CPU": float(self.cores)} if self.cores else {}

    def put(self, value):
        return value

    def remote(self, cls):
        def options(*, num_cpus, max_restarts):
            assert (num_cpus, max_restarts) == (1, 0), "a core each, and what dies is replaced by the job itself"
            return SimpleNamespace(remote=lambda: FakeActor(self, cls()))

        return SimpleNamespace(options=options)

    def wait(self, references, *, num_returns, timeout):
        assert (timeout == 0) == (num_returns == len(references) > 1) or num_returns == len(references) == 1
        pending = [reference for reference in self.calls if reference in references]
        return (pending[:1] if num_returns == 1 else pending[:2]), []

    def get(self, reference):
        self.calls.remove(reference)
        return reference.answer()

    def kill(self, actor, *, no_restart):
        assert no_restart
        self.killed.append(actor)


class FakeActor:
    """One worker; once dead, it answers nothing."""

    def __init__(self, ray, worker):
        self.ray, self.worker, self.is_dead = ray, worker, ray.stillborn > 0
        ray.stillborn -= 1
        ray.actors.append(self)
        self.start = SimpleNamespace(remote=lambda *arguments: self._asked(worker.start, *arguments))
        self.do = SimpleNamespace(remote=lambda *arguments: self._asked(worker.do, *arguments))

    def _asked(self, method, *arguments):
        reference = _Reference(lambda: self._answer(method, *arguments))
        self.ray.calls.append(reference)
        return reference

    def _answer(self, method, *arguments):
        if method == self.worker.do and self.ray.deadly.get(arguments[0], 0):
            self.ray.deadly[arguments[0]] -= 1
            self.is_dead = True
        if self.is_dead:
            raise FakeRayError("The actor died.\n\tactor_id: 1\nThe node ran low on memory. More words.")
        return method(*arguments)


class _Reference:
    """An answer to come; hashable, unlike a namespace."""

    def __init__(self, answer):
        self.answer = answer
