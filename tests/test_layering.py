"""The package is its own map: arrows of import point left along the flow."""

import ast
import re

import pytest

from tests.library import ROOT, modules

BASE = {"base", "errors"}
MAY_IMPORT = {
    "base": {"base"},
    "lengths": {"base"},
    "media": {"base"},
    "sources": {"base"},
    "encode": {"base", "sources"},
    "fast": {"base", "sources", "encode"},
    "media/sources": {"base", "media", "sources"},
    "media/augmentation": {"base", "media", "sources"},
    "media/tokenized": {"base", "media", "sources", "store/shards", "serve", "collate"},
    "media/encode": {"base", "media", "sources", "encode"},
    "base/execute": {"base"},
    "measure": {"base", "lengths", "sources", "encode", "base/execute"},
    "media/measure": {"base", "base/execute", "media", "media/encode", "sources", "encode", "measure"},
    "plan": {"base", "lengths"},
    "planners": {"base", "plan"},
    "dynamic": {"base", "stream", "lengths", "sources", "encode", "plan", "store/shards", "serve", "trees"},
    "mixtures": {"base", "lengths", "plan", "collate", "store/shards"},
    "store/shards": {"base"},
    "media/store": {"base", "media", "store/shards"},
    "store": {"base", "lengths", "sources", "encode", "measure", "plan", "store/shards", "base/execute"},
    "media/job": {
        *("base", "lengths", "media", "media/store", "media/encode", "sources"),
        *("encode", "base/execute", "plan", "store/shards", "store"),
    },
    "serve": {"base", "lengths", "sources", "encode", "plan", "store/shards"},
    "stream": {
        "base",
        "lengths",
        "sources",
        "integrations/packed_layouts",
        "plan",
        "trees",
        "store/shards",
        "serve",
    },
    "stream/producer": {
        *(
            "base",
            "base/execute",
            "lengths",
            "sources",
            "encode",
            "measure",
            "plan",
            "store/shards",
            "store",
        ),
        *("serve", "stream", "media/sources", "media/job", "integrations/packed_layouts"),
    },
    "clusters": {
        *("base", "base/execute", "lengths", "sources", "encode", "measure", "plan", "store/shards", "serve"),
    },
    "collate": {"base", "plan", "store/shards", "serve"},
    "media/collate": {"base", "media", "media/tokenized", "store/shards", "serve", "collate"},
    "media/towers": {"base", "plan"},
    "integrations/trainers": {
        "base",
        "mixtures",
        "lengths",
        "sources",
        "encode",
        "plan",
        "serve",
        "stream",
        "clusters",
        "collate",
        "trees",
        "store/shards",
        "media/collate",
    },
    "trees": {
        *(
            "base",
            "base/execute",
            "lengths",
            "sources",
            "encode",
            "measure",
            "plan",
            "planners",
            "store/shards",
            "collate",
        ),
        "integrations/trainers",
    },
    "rl": {"base", "trees", "lengths", "plan", "planners", "store/shards", "collate"},
    "preferences": {"base", "trees", "sources", "store/shards", "serve", "collate", "integrations/trainers"},
    "integrations/packed_layouts": {"base", "media", "sources"},
}
ANYTHING = {"report", "cli", "testing", "verify", "doctor", "integrations", "__init__", "__main__"}
FORMER_PLACES = {
    "stream/__init__.py",  # names ``PackingProducer``, which is in ``stream/producer``
}
"""Modules that only import names from where they are now, for code that knows them from here."""

WINGS = {
    "integrations/packed_layouts": {"packed_layouts"},
    "preferences": {"preference", "preferences", "kto", "rival", "desirable"},
    "rl": {"rl", "rollout", "rollouts", "advantages", "logprobs"},
    "stream": {"ack", "acks", "lazy", "followed", "expired"},
}
"""Rooms beside the line, each with words that no name in the line has."""
OUTSIDE = {
    "base": {"numpy", "xxhash"},
    "lengths": {"numpy"},
    "media": {"numpy"},
    "sources": {"numpy", "xxhash"},
    "encode": {"numpy"},
    "fast": {"numpy"},
    "base/execute": {"numpy", "pyarrow"},
    "measure": {"numpy"},
    "plan": {"numpy"},
    "planners": {"numpy"},
    "mixtures": {"numpy"},
    "dynamic": {"numpy"},
    "store/shards": {"numpy", "xxhash"},
    "store": {"numpy", "xxhash"},
    "serve": {"numpy"},
    "stream": {"numpy"},
    "stream/producer": {"numpy"},
    "clusters": {"numpy", "xxhash"},
    "collate": {"numpy"},
    "media/augmentation": {"numpy"},
    "media/sources": {"numpy", "xxhash"},
    "media/tokenized": {"numpy"},
    "media/encode": {"numpy"},
    "media/measure": {"numpy"},
    "media/store": {"numpy", "xxhash"},
    "media/job": {"numpy"},
    "media/collate": {"numpy"},
    "media/towers": set(),
    "integrations/trainers": {"numpy"},
    "trees": {"numpy"},
    "rl": {"numpy"},
    "preferences": {"numpy"},
    "integrations/packed_layouts": {"numpy"},
}
"""What each package may import when it is imported. Libraries used inside a function are not in the list."""

HEAVY_FILES = {
    "preferences": {"torch"},
    "collate/dialects": {"torch"},
    "trees/dialects.py": {"torch"},
    "trees/attention.py": {"torch", "transformers"},
    "trees/masks.py": {"torch"},
    "trees/small_models.py": {"torch", "transformers"},
    "collate/torch.py": {"torch"},
    "collate/loss_torch.py": {"torch"},
    "mixtures/source_losses.py": {"torch"},
    "serve/worker_loader.py": {"torch"},
    "dynamic/request_sampler.py": {"torch"},
    "integrations/trainers": {"torch", "transformers", "trl", "datasets", "lightning"},
    "integrations/trainers/olmo_core.py": {"olmo_core"},
    "rl/compat/trl.py": {"torch"},
}


def package_of_module(module):
    """The package of a module: its folder's, a room of a wing, and the base for lone modules."""
    parts = module.path.relative_to(ROOT).with_suffix("").parts
    room = "/".join(parts[:2])
    return room if room in MAY_IMPORT else "base" if parts[0] in BASE else parts[0]


def imports_that_run(module):
    """Names ``module.name`` that code imports, inside of functions too, but not for type checkers alone."""
    for one in module.imports:
        if not one.is_for_types:
            yield from (f"{one.module}.{name}" for name in one.names)


def files_that_import(library):
    """Files that import a library anywhere."""
    return {module.file for module in modules() for one in module.imports if one.module.split(".")[0] == library}


def modules_on_circles(arrows):
    """Names that remain when those without an arrow from or to a remaining one are removed, again and again."""
    remaining = {name: set(targets) & set(arrows) for name, targets in arrows.items()}
    while ends := {name for name, targets in remaining.items() if not targets} | (
        set(remaining) - set().union(*remaining.values())
    ):
        remaining = {name: targets - ends for name, targets in remaining.items() if name not in ends}
    return sorted(remaining)


def package_of(name):
    parts = name.split(".")[1:]
    if not parts:
        return "__init__", ""
    room = "/".join(parts[:2])
    return (room if room in MAY_IMPORT else "base" if parts[0] in BASE else parts[0]), room


def test_verify_reaches_the_checks_of_media_and_columns_through_its_table():
    """Without it the frame of all checks knows each kind of data, and cannot be used without them."""
    (run,) = [module for module in modules() if module.file == "verify/bench.py"]
    names = {one.module for one in run.imports}
    assert "brimful.verify.checks" in names
    assert not {name for name in names if name.endswith(("media", "columns", "context_parallel"))}


def test_doctor_stands_alone():
    """``verify`` brings the truth and takes the machine from it; who has nothing packed needs no packs."""
    own = ("brimful.doctor", "brimful.base", "brimful.errors")
    names = {one.module for module in modules() if module.file.startswith("doctor/") for one in module.imports}
    others = {name for name in names if name.startswith("brimful.") and not name.startswith(own)}
    assert others == {"brimful.serve.process_group", "brimful.report.html.markup"}


def test_arrows_point_left():
    """Prints the arrow that is wrong."""
    wrong = []
    checked = 0
    for module in modules():
        package = package_of_module(module)
        if package in ANYTHING or module.file in FORMER_PLACES:
            continue
        allowed = MAY_IMPORT[package]
        for one in module.imports:
            if one.module.split(".")[0] != "brimful":
                continue
            checked += 1
            target, detail = package_of(one.module)
            if target != package and target not in allowed and detail not in allowed:
                wrong.append(f"{module.file}: {package} -> {one.module}")
    assert checked > 100
    assert not wrong, "\n".join(wrong)


def names_of(module):
    """Names that a module defines or uses, and the modules that it imports."""
    for node in module.nodes:
        yield from (getattr(node, field, None) for field in ("id", "attr", "arg", "name"))
        yield from (alias.name for alias in getattr(node, "names", ()) if isinstance(alias, ast.alias))
        yield getattr(node, "module", None)


def test_the_line_names_no_wing():
    """A room that the line imports or names has to be known by everybody who reads the line."""
    line = {"sources", "encode", "measure", "lengths", "plan", "store/shards", "store", "serve", "collate"}
    wrong = []
    checked = 0
    for module in modules():
        if package_of_module(module) not in line:
            continue
        words = {word for name in names_of(module) if isinstance(name, str) for word in re.split(r"[._]", name.lower())}
        checked += 1
        wrong += [f"{module.file}: {room}: {found}" for room, own in WINGS.items() if (found := own & words)]
    assert checked > 120
    assert not wrong, "\n".join(wrong)


REPORT_ROOMS = {
    "analysis": {"analysis"},
    "table_model": {"analysis"},
    "html": {"html", "table_model", "analysis"},
    "text": {"text", "table_model", "analysis"},
}
"""Rooms of ``report`` and the rooms that each may import."""


def test_rooms_of_the_report_point_to_the_analysis():
    """A number that is computed while it is drawn is missing in the terminal, in the page, or in the JSON."""
    wrong = []
    checked = 0
    for module in modules():
        parts = module.file.split("/")
        if parts[0] != "report" or parts[1] == "__init__.py":
            continue
        room = parts[1].removesuffix(".py")
        for one in module.imports:
            if one.module.startswith("brimful.report"):
                checked += 1
                names = one.module.split(".")[2:3] or one.names
                if not set(names) <= REPORT_ROOMS[room]:
                    wrong.append(f"{module.file}: {room} -> {one.module}")
    assert checked > 30
    assert not wrong, "\n".join(wrong)


def test_modules_of_the_command_line_import_in_one_direction():
    """A file of settings that asks a command for its options, which ask the file, is read all at once or not at all."""
    for package in ("cli", "store", "stream"):
        arrows = {}
        for module in modules():
            if module.file.startswith(f"{package}/"):
                names = {f"{one.module}.{name}" for one in module.imports for name in one.names}
                arrows[module.name] = names | {one.module for one in module.imports}
        assert len(arrows) > 10
        assert not modules_on_circles(arrows), "\n".join(modules_on_circles(arrows))


def test_modules_of_the_report_import_in_one_direction():
    """Two modules that import each other are one module in two files: neither is read alone."""
    arrows = {}
    for module in modules():
        if module.file.startswith("report/"):
            arrows[module.name] = {one.module for one in module.imports if one.module.startswith("brimful.report.")}
    assert len(arrows) > 20
    assert not modules_on_circles(arrows), "\n".join(modules_on_circles(arrows))


PLAN_MAY_IMPORT = {
    "schedule": set(),
    "packing": set(),
    "policies": {"packing"},
    "counts": {"packing"},
    "fit": {"packing", "counts"},
    "order": {"packing", "counts"},
    "algorithms": {"packing", "counts", "fit"},
    "plan_settings": {"policies", "algorithms"},
    "items": {"packing", "policies", "plan_settings"},
    "ledger": {"policies", "plan_settings"},
    "saved": {"packing", "policies", "schedule", "plan_settings", "ledger"},
    "plan": {"packing", "plan_settings", "ledger", "saved"},
    "drawn": {"packing", "plan_settings", "items", "ledger"},
    "planner": {
        *("packing", "policies", "counts", "fit", "order"),
        *("algorithms", "plan_settings", "items", "ledger", "plan", "drawn"),
    },
}
"""Rooms and top modules of ``plan``, each behind all that it may import: read downwards it is the way of a plan."""

PLAN_ENTRIES = 21
"""Modules and folders at the top of ``plan``, at most: one screen of a listing."""


def plan_imports():
    """Triples of file, room and imported room, for every import from one room of ``plan`` to another that runs."""
    for module in modules():
        parts = module.path.relative_to(ROOT).with_suffix("").parts
        if parts[0] == "plan" and parts[1] != "__init__":
            for name in imports_that_run(module):
                target = name.split(".")[2:3]
                if name.startswith("brimful.plan.") and target != [parts[1]]:
                    yield "/".join(parts[1:]), parts[1], target[0]


def test_rooms_of_the_plan_import_in_one_direction():
    """Prints the arrow that is wrong. Rooms on a circle can only be read all at once."""
    arrows = list(plan_imports())
    assert len(arrows) > 60
    wrong = [f"{file}: {room} -> {target}" for file, room, target in arrows if target not in PLAN_MAY_IMPORT[room]]
    assert not wrong, "\n".join(wrong)
    rooms = list(PLAN_MAY_IMPORT)
    for number, (room, targets) in enumerate(PLAN_MAY_IMPORT.items()):
        assert targets <= set(rooms[:number]), f"{room} is listed before something that it may import"


def test_modules_of_the_plan_import_in_one_direction():
    """Rooms may be in order while two modules of one room import each other."""
    arrows = {}
    for module in modules():
        if module.file.startswith("plan/"):
            # ``module.name`` stands for the module, or for the module ``name`` of the package ``module``. Imports for
            # types count: who reads one module has to read the other.
            names = {f"{one.module}.{name}" for one in module.imports for name in one.names}
            arrows[module.name] = names | {name.rpartition(".")[0] for name in names}
    assert len(arrows) > 30
    assert not modules_on_circles(arrows), "\n".join(modules_on_circles(arrows))


@pytest.mark.parametrize(
    ("rooms", "num_modules"),
    [(("serve/", "stream/", "shared/"), 30), (("encode/", "fast/", "measure/", "media/measure", "base/execute/"), 35)],
)
def test_modules_that_serve_and_that_measure_import_in_one_direction(rooms, num_modules):
    """Types count too: two modules that name each other are one module in two files."""
    arrows = {}
    for module in modules():
        if module.file.startswith(rooms):
            names = {f"{one.module}.{name}" for one in module.imports for name in one.names}
            arrows[module.name] = names | {name.rpartition(".")[0] for name in names}
    assert len(arrows) > num_modules
    assert not modules_on_circles(arrows), "\n".join(modules_on_circles(arrows))


def test_the_plan_is_seen_at_a_glance():
    """In a flat folder of fifty files readers do not find where a plan begins."""
    entries = {path.name for path in (ROOT / "plan").iterdir() if path.name != "__pycache__"}
    assert len(entries) <= PLAN_ENTRIES
    assert entries == {"__init__.py"} | {
        room if (ROOT / "plan" / room).is_dir() else f"{room}.py" for room in PLAN_MAY_IMPORT
    }


def test_heavy_libraries_are_imported_where_they_are_used():
    """A top-level import of torch below the collator would make every command wait for it."""
    import sys

    wrong = []
    for module in modules():
        package = package_of_module(module)
        if package in ANYTHING or module.file in FORMER_PLACES:
            continue
        extra = set().union(*(names for prefix, names in HEAVY_FILES.items() if module.file.startswith(prefix)))
        for one in module.imports:
            library = one.module.split(".")[0]
            if (
                one.is_at_top
                and library != "brimful"
                and library not in sys.stdlib_module_names | OUTSIDE[package] | extra | {"__future__"}
            ):
                wrong.append(f"{module.file} imports {one.module} at the top")
    assert not wrong, "\n".join(wrong)


def test_the_compiler_has_one_home():
    """Each place that asks for numba decides once more what to do if it is missing, or has nowhere to write."""
    assert files_that_import("numba") == {"base/compiling.py"}


def test_ray_has_one_home():
    """A second place that talks to the cluster decides once more what becomes of a worker that dies."""
    assert files_that_import("ray") == {"clusters/ray.py"}


def test_the_house_is_seen_at_a_glance():
    """A newcomer who lists the package sees only its rooms."""
    rooms = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    modules = {path.name for path in ROOT.glob("*.py")} - {"__init__.py", "__main__.py"}
    assert len(rooms | modules) <= 26, sorted(rooms | modules)


def test_no_module_is_called_utils():
    """A name that says nothing collects everything."""
    names = {part.removesuffix(".py") for module in modules() for part in module.file.split("/")}
    assert {"plan", "planner"} <= names
    assert not names & {"utils", "util", "common", "core", "misc", "helpers"}


def dotted(node):
    """``pickle.load`` of the expression; any other name is empty."""
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def test_nothing_unpickles_or_evaluates():
    """Data files are untrusted input. The contract of sources pickles what it has just made, as processes do."""
    for module in modules():
        if module.file == "testing/contracts.py":
            continue
        for node in module.nodes:
            if isinstance(node, ast.Call):
                name = dotted(node.func)
                assert name not in {"eval", "exec", "pickle.load", "pickle.loads", "torch.load"}, (
                    f"{module.file}: {name}"
                )
                for keyword in node.keywords:
                    allowed = keyword.arg == "allow_pickle" and getattr(keyword.value, "value", None) is True
                    assert not allowed, f"{module.file}: allow_pickle=True"
