# SPDX-License-Identifier: Apache-2.0
"""The commands and packages a user starts with: Makefile, .ci/run, pyproject.toml, licence texts."""

import importlib.metadata
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tomllib
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from packaging.requirements import Requirement

from tests.__main__ import (
    CLOCK_STEPS,
    COMMANDS,
    CPU_BOUND_SUITES,
    E2E,
    FULL_DISK,
    KIT_RUNS,
    LARGEST_SUITES,
    MULTI_STREAMER,
    NICE,
    STAGES,
    SUBSCRIPTIONS,
    TIMING_SENSITIVE,
    TRANSPORTS,
    VEHICLE,
    WAITING_SUITES,
    WITH_TRANSPORTS,
    child_environment,
    exit_code_of,
    pytest_command,
    run_parallel,
    running,
)

REPO = Path(__file__).resolve().parent.parent
PLUGINS = sorted(path.parent for path in REPO.glob("plugins/*/pyproject.toml"))
PIPELINE = REPO / "pipeline"
TARGETS = [
    "demo",
    "demo-report",
    "test",
    "quick",
    "pythons",
    "interop",
    "clients",
    "lint",
    "conformance",
    "bench",
    "soak",
    "proto",
    "docs",
    "dist",
    "clean",
    "help",
]
PERMISSIVE = {"Apache-2.0", "BSD-3-Clause", "ISC", "MIT", "Unlicense"}
DEVELOPMENT_ONLY = {
    "pytest",
    "mypy",
    "ruff",
    "hypothesis",
    "import-linter",
    "grpcio-tools",
    "pyspark",
    "someip",
}


def project(folder: Path) -> dict[str, Any]:
    table: dict[str, Any] = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return table


def names(requirements: list[str]) -> set[str]:
    return {Requirement(line).name for line in requirements}


def dry_run(*targets: str) -> str:
    """The commands of make on a fresh clone, without running them (-B: as if no stamp existed)."""
    command = ["make", "--no-print-directory", "-n", "-B", "PYTHON=python3.11", *targets]
    return subprocess.run(
        command, cwd=REPO, env=os.environ, capture_output=True, text=True, check=True
    ).stdout


# ------------------------------------------------------------------------------------------------------- Makefile


@pytest.mark.parametrize("target", TARGETS)
def test_make_has_the_target_and_help_describes_it(target: str) -> None:
    shown = subprocess.run(["make", "help"], cwd=REPO, capture_output=True, text=True, check=True).stdout
    assert dry_run(target)
    assert re.search(rf"^  make {target} +\S", shown, re.MULTILINE)


def installed_by(target: str) -> set[str]:
    """Every argument of every `pip install` that make would run for a target."""
    lines = [line for line in dry_run(target).splitlines() if re.search(r"pip .*install", line)]
    return {word.strip("'") for line in lines for word in line.split()}


def test_the_demo_installs_the_streamer_and_its_plugins_and_nothing_for_development() -> None:
    arguments = installed_by("demo")
    assert {".[zenoh,cli,observe]", *(f"./{plugin.relative_to(REPO)}" for plugin in PLUGINS)} <= arguments
    assert not any("dev" in re.findall(r"\w+", argument) for argument in arguments - {"/dev/null"})
    assert "./pipeline" not in arguments
    assert {"ustreamer[zenoh,cli,observe,dev]", "./pipeline"} <= installed_by("test")


def test_the_dependencies_of_the_demo_exclude_spark_and_development_tools() -> None:
    root = project(REPO)
    extras = root["optional-dependencies"]
    at_run_time = names(root["dependencies"]) | names(extras["zenoh"]) | names(extras["cli"])
    for plugin in PLUGINS:
        at_run_time |= names(project(plugin)["dependencies"])
    assert {"pluggy", "protobuf", "msgspec", "eclipse-zenoh", "rich", "lmdb"} <= at_run_time
    assert at_run_time & DEVELOPMENT_ONLY == set()


def test_make_test_runs_every_check_and_then_the_tests() -> None:
    plan = dry_run("test")
    steps = ["ruff check", "ruff format", "bin/mypy", "lint-imports", "-m tests"]
    positions = [plan.index(step) for step in steps]
    assert positions == sorted(positions)
    for tests in [*REPO.glob("plugins/*/tests"), PIPELINE / "tests"]:
        assert f"bin/mypy {tests.relative_to(REPO)}" in plan


def test_make_pythons_fails_if_an_interpreter_is_missing() -> None:
    command = ["make", "--no-print-directory", "pythons", "PYTHONS=python0.0"]
    result = subprocess.run(command, cwd=REPO, capture_output=True, text=True, check=False)
    assert result.returncode != 0
    assert "python0.0" in result.stderr


def test_without_npm_the_tests_with_autobahn_js_are_reported_as_skipped(tmp_path: Path) -> None:
    where = "plugins/wamp/tests/js"
    (tmp_path / where).mkdir(parents=True)
    for name in ("Makefile", f"{where}/package.json", f"{where}/package-lock.json"):
        (tmp_path / name).write_bytes((REPO / name).read_bytes())
    commands = tmp_path / "bin"
    commands.mkdir()
    for name in ("mkdir", "cp", "sh", "make"):
        (commands / name).symlink_to(str(shutil.which(name)))
    command = ["make", "PYTHON=python3", "build/autobahn-js/.installed"]
    run = partial(subprocess.run, command, cwd=tmp_path, env={"PATH": str(commands)}, capture_output=True)
    result = run(text=True, check=False)
    assert (result.returncode, result.stdout) == (0, "no npm: the tests with Autobahn|JS are skipped\n")
    (commands / "npm").write_text("#!/bin/sh\nexit 1\n", encoding="utf-8")
    (commands / "npm").chmod(0o755)
    result = run(text=True, check=False)
    assert result.returncode == 0
    assert "npm could not install" in result.stdout
    assert not (tmp_path / command[-1]).exists(), "it is tried again the next time"


def test_npm_packages_are_pinned_to_the_hash_and_permissively_licensed() -> None:
    lock = json.loads((REPO / "plugins/wamp/tests/js/package-lock.json").read_text(encoding="utf-8"))
    packages = {name: each for name, each in lock["packages"].items() if name}
    assert {"node_modules/autobahn", "node_modules/autobahn-browser"} <= set(packages)
    for name, each in packages.items():
        assert each["integrity"].startswith("sha512-"), name
        assert each["license"] in PERMISSIVE, name


def test_without_an_index_the_tests_with_the_vectors_of_wamp_are_reported_as_skipped(tmp_path: Path) -> None:
    where = "plugins/wamp/tests/vectors.txt"
    (tmp_path / where).parent.mkdir(parents=True)
    for name in ("Makefile", where):
        (tmp_path / name).write_bytes((REPO / name).read_bytes())
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / ".venv" / "bin" / "pip").touch()
    python = tmp_path / ".venv" / "bin" / "python"
    made = "build/wamp-testsuite/.installed"
    # Under `make test` this is a recursive make, which prints its directory.
    command = ["make", "--no-print-directory", made]

    def make(script: str) -> str:
        python.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
        python.chmod(0o755)
        result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert result.returncode == 0, result.stderr
        return result.stdout

    assert "the tests with them are skipped" in make("exit 1")
    assert not (tmp_path / made).exists(), "it is tried again the next time"
    # The download by pip; only its vectors are used.
    source = tmp_path / "autobahn-1" / ".proto" / "testsuite" / "singlemessage" / "basic"
    source.mkdir(parents=True)
    (source / "event.json").write_text("{}", encoding="utf-8")
    (source.parents[3] / "other.json").write_text("{}", encoding="utf-8")
    subprocess.run(["tar", "-czf", "autobahn-1.tar.gz", "autobahn-1"], cwd=tmp_path, check=True)
    assert make("cp autobahn-1.tar.gz build/wamp-testsuite/") == ""
    taken = {str(each.relative_to(tmp_path / "build")) for each in (tmp_path / "build").rglob("*.json")}
    assert taken == {"wamp-testsuite/singlemessage/basic/event.json"}


@pytest.mark.parametrize(
    ("library", "where"),
    [("up-python", "clients/up-python/pyproject.toml"), ("someip-py", "tests/e2e/clients/someip_py.txt")],
)
def test_without_an_index_the_tests_with_a_library_of_others_are_reported_as_skipped(
    tmp_path: Path, library: str, where: str
) -> None:
    (tmp_path / where).parent.mkdir(parents=True)
    for name in ("Makefile", where):
        (tmp_path / name).write_bytes((REPO / name).read_bytes())
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / ".venv" / "bin" / "pip").touch()
    python = tmp_path / ".venv" / "bin" / "python"
    made = tmp_path / "build" / library / ".installed"

    def make(script: str) -> str:
        python.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
        python.chmod(0o755)
        command = ["make", "--no-print-directory", str(made.relative_to(tmp_path))]
        result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert result.returncode == 0, result.stderr
        return result.stdout

    assert make("exit 1") == f"pip could not install {library}: the tests with it are skipped\n"
    assert not made.exists(), "it is tried again the next time"
    assert make(f"mkdir -p {made.parent}") == ""
    assert made.exists()


def test_the_vectors_are_fetched_by_their_hash_and_every_test_has_their_path() -> None:
    (wanted,) = re.findall(
        r"^autobahn==\S+ --hash=sha256:[0-9a-f]{64}$",
        (REPO / "plugins/wamp/tests/vectors.txt").read_text(encoding="utf-8"),
        re.MULTILINE,
    )
    assert wanted
    plan = dry_run("test")
    assert "--require-hashes -d build/wamp-testsuite -r plugins/wamp/tests/vectors.txt" in plan
    assert plan.index("build/wamp-testsuite") < plan.index("-m tests")


def test_skipped_tests_are_reported_with_their_reason() -> None:
    assert "-rs" in pytest_command((), ())


def test_every_folder_of_tests_is_run_once() -> None:
    folders = tomllib.loads((REPO / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["pytest"][
        "ini_options"
    ]
    places = [each for part in STAGES for side in part for each in side]
    run = [each for each in places if not each.startswith("--ignore")]
    left_out = [each.removeprefix("--ignore=") for each in places if each.startswith("--ignore")]
    # A place that one suite ignores is a place of its own in another suite.
    known = [
        *(*TIMING_SENSITIVE, MULTI_STREAMER, SUBSCRIPTIONS, *KIT_RUNS, *CLOCK_STEPS, *FULL_DISK, VEHICLE),
        *(*COMMANDS, *LARGEST_SUITES, TRANSPORTS, *WITH_TRANSPORTS, E2E),
    ]
    assert sorted(left_out) == sorted(known)
    assert sorted(run) == sorted([*left_out, *{each.split("/*")[0] for each in folders["testpaths"]}])
    assert all((REPO / each).exists() for each in run)


@pytest.mark.parametrize(
    ("codes", "expected"),
    [([0, 0, 0], 0), ([0, 1, 0], 1), ([0, 0, 2], 2), ([5, 0, 5], 0), ([5, 1, 0], 1), ([5, 5, 5], 5)],
)
def test_the_tests_fail_if_any_part_of_them_does(codes: list[int], expected: int) -> None:
    assert exit_code_of(codes) == expected


def test_only_the_selected_places_are_run() -> None:
    command = [
        sys.executable,
        "-m",
        "tests",
        "tests/test_build_and_packaging.py::test_the_licence_is_the_full_apache_text",
    ]
    done = subprocess.run(command, cwd=REPO, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert "1 passed" in done.stdout


def test_cpu_bound_tests_use_the_cores_that_waiting_tests_leave_idle() -> None:
    assert [
        pytest_command(where, ())[:3] == list(NICE) for where in (*WAITING_SUITES, *CPU_BOUND_SUITES)
    ] == [False] * 3 + [True] * 4
    assert pytest_command(CPU_BOUND_SUITES[-1], ("-x",))[-2:] == [LARGEST_SUITES[1], "-x"]


def test_bytecode_is_cached_where_none_may_be_next_to_the_sources() -> None:
    assert child_environment({"HOME": "/h"}) == {"HOME": "/h"}
    notified = child_environment({"HOME": "/h", "PYTHONDONTWRITEBYTECODE": "1"})
    assert notified.keys() == {"HOME", "PYTHONPYCACHEPREFIX"}
    sent_request = "import sys; print(sys.dont_write_bytecode, sys.pycache_prefix)"
    done = subprocess.run(
        [sys.executable, "-c", sent_request], env=notified, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["False", str(REPO / ".pytest_cache" / "bytecode")]


def test_parts_run_in_parallel_and_all_outputs_are_printed(capfd: pytest.CaptureFixture[str]) -> None:
    # Each waits for the other: one after the other they would never end.
    with socket.create_server(("127.0.0.1", 0)) as meeting:
        port = meeting.getsockname()[1]
        comes = f"import socket; socket.create_connection(('127.0.0.1', {port})).recv(1); "
        commands = [
            [sys.executable, "-c", comes + f"print('part {number}'); raise SystemExit({number})"]
            for number in (3, 4, 5)
        ]

        def meet() -> None:
            both = [meeting.accept()[0] for _ in commands]
            for each in both:
                each.close()

        waiter = Thread(target=meet)
        waiter.start()
        assert run_parallel(*commands) == [3, 4, 5]
        waiter.join()
    output = capfd.readouterr().out
    assert output.index("part 3") < output.index("part 4") < output.index("part 5")


def test_an_interrupted_run_ends_the_other_commands() -> None:
    with socket.create_server(("127.0.0.1", 0)) as meeting:
        port = meeting.getsockname()[1]
        waits = f"import socket; s = socket.create_connection(('127.0.0.1', {port})); s.recv(1)"
        others: list[socket.socket] = []

        def interrupted() -> None:
            with running([sys.executable, "-c", waits]):
                others.append(meeting.accept()[0])
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            interrupted()
        with others[0] as other:
            other.settimeout(30)
            assert other.recv(1) == b"", "the process is still connected"


def test_a_failing_check_stops_make_and_its_output_is_printed(tmp_path: Path) -> None:
    recipe = (REPO / "Makefile").read_text(encoding="utf-8")
    definition = recipe[recipe.index("check = @") : recipe.index("\n\ndemo:")]
    body = "all:\n\t$(call check,good,true)\n\t$(call check,bad,echo the reason; exit 3)\n\t$(call check,never,true)\n"
    (tmp_path / "Makefile").write_text(f"{definition}\n{body}", encoding="utf-8")
    result = subprocess.run(["make"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert result.returncode != 0
    assert re.findall(r"(\S+) +(ok|FAILED)", result.stdout) == [("good", "ok"), ("bad", "FAILED")]
    assert "the reason" in result.stdout


def test_without_a_recent_python_make_prints_its_requirement(tmp_path: Path) -> None:
    (tmp_path / "Makefile").write_bytes((REPO / "Makefile").read_bytes())
    (tmp_path / "pyproject.toml").touch()
    command = ["make", "PYTHON=", "demo"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert result.returncode != 0
    assert "needs Python 3.11 or newer" in result.stderr
    assert not (tmp_path / ".venv").exists()


# -------------------------------------------------------------------------------------------------------- .ci/run


def ci_run(tmp_path: Path, *, ci: str) -> subprocess.CompletedProcess[str]:
    """Run .ci/run on a machine without tshark and apt-get. Its make only reports that it ran."""
    (tmp_path / ".ci").mkdir()
    script = tmp_path / ".ci" / "run"
    for name in ("run", "install"):
        shutil.copy(REPO / ".ci" / name, tmp_path / ".ci" / name)
    commands = tmp_path / "bin"
    commands.mkdir()
    (commands / "make").write_text('#!/bin/sh\necho "make $* was called, CI=$CI"\n', encoding="utf-8")
    (commands / "make").chmod(0o755)
    for name in ("dirname", "bash"):
        (commands / name).symlink_to(str(shutil.which(name)))
    env = {"PATH": str(commands), "CI": ci}
    return subprocess.run(["/bin/bash", script], env=env, capture_output=True, text=True, check=False)


def test_ci_run_is_executable_and_ends_in_make_test() -> None:
    script = REPO / ".ci" / "run"
    assert os.access(script, os.X_OK)
    assert script.read_text(encoding="utf-8").splitlines()[-1] == "make test"


def test_in_ci_a_tshark_that_cannot_be_installed_is_a_failure_not_a_skipped_test(tmp_path: Path) -> None:
    result = ci_run(tmp_path, ci="true")
    assert result.returncode == 1
    assert "no apt-get here\n.ci/run: cannot install tshark" in result.stderr
    assert "was called" not in result.stdout


def test_on_a_developers_machine_the_missing_tshark_is_reported_and_the_tests_run(tmp_path: Path) -> None:
    result = ci_run(tmp_path, ci="false")
    assert result.returncode == 0
    assert "cannot install tshark" in result.stderr
    assert result.stdout == "make docs was called, CI=false\nmake test was called, CI=false\n"


def test_make_interop_installs_tshark_and_runs_the_available_tests() -> None:
    plan = dry_run("interop")
    assert plan.index(".ci/install tshark iproute2") < plan.index("-m pytest")
    files = re.findall(r"tests/e2e/\w+/test_\w+\.py", plan)
    assert len(files) >= 3
    assert all((REPO / file).is_file() for file in files)


# -------------------------------------------------------------------------------------------------- distributions


@pytest.mark.parametrize(
    "folder", [REPO, *PLUGINS, PIPELINE], ids=lambda path: "root" if path == REPO else path.name
)
def test_every_distribution_is_apache_licensed_and_types_its_users(folder: Path) -> None:
    about = project(folder)
    assert about["license"] == "Apache-2.0"
    assert about["requires-python"] == ">=3.11"
    assert (folder / about["readme"]).is_file()
    assert (folder / about["name"].replace("-", "_") / "py.typed").is_file()


def test_the_page_and_the_classifiers_name_the_same_python_versions() -> None:
    prefix = "Programming Language :: Python :: "
    declared = {line.removeprefix(prefix) for line in project(REPO)["classifiers"] if line.startswith(prefix)}
    chapter = (REPO / "docs/install.md").read_text(encoding="utf-8").split("## Python versions")[1]
    assert set(re.findall(r"^\| (3\.\d+) \|", chapter, re.MULTILINE)) == declared
    assert min(declared, key=lambda each: int(each.split(".")[1])) == "3.11"


@pytest.mark.parametrize("folder", PLUGINS, ids=lambda path: path.name)
def test_a_plugin_is_found_by_its_folders_name_and_its_class_exists(folder: Path) -> None:
    (entry,) = importlib.metadata.entry_points(group="ustreamer", name=folder.name)
    assert entry.dist is not None
    assert entry.dist.name == f"ustreamer-{folder.name}" == project(folder)["name"]
    assert isinstance(entry.load(), type)


@pytest.mark.parametrize(
    ("plugin", "expected"),
    [("usubscription", {"ustreamer", "lmdb", "msgspec", "protobuf"}), ("throttle", {"ustreamer", "msgspec"})],
)
def test_a_plugin_brings_only_its_own_dependencies(plugin: str, expected: set[str]) -> None:
    assert names(project(REPO / "plugins" / plugin)["dependencies"]) == expected


def test_the_import_contracts_and_mypy_cover_every_plugin() -> None:
    """A new plugin is not checked until it is named; this makes forgetting it red."""
    tool = tomllib.loads((REPO / "pyproject.toml").read_text(encoding="utf-8"))["tool"]
    packages = {f"ustreamer_{plugin.name}" for plugin in PLUGINS}
    contracts = {contract["id"]: contract for contract in tool["importlinter"]["contracts"]}
    assert packages <= set(tool["importlinter"]["root_packages"])
    assert packages == set(contracts["plugins-outside"]["source_modules"])
    assert packages == set(contracts["plugins-apart"]["modules"])
    assert packages == set(contracts["no-plugin-needed"]["forbidden_modules"])
    assert packages == set(contracts["no-pipeline-needed"]["source_modules"]) - {"ustreamer"}
    folders = {str(plugin.relative_to(REPO)) for plugin in PLUGINS}
    assert folders | {"pipeline", "tck", "clients/up-python"} == set(tool["mypy"]["mypy_path"])
    assert {f"{folder}/ustreamer_{Path(folder).name}" for folder in folders} <= set(tool["mypy"]["files"])


def test_every_rule_that_is_switched_off_carries_its_reason_on_the_line() -> None:
    text = (REPO / "pyproject.toml").read_text(encoding="utf-8")
    ignores = text[text.index("\nignore = [") : text.index("[tool.ruff.lint.flake8-tidy-imports]")]
    rules = re.findall(r'^ *(?:"[^"]+" = \[)?"[A-Z]+\d*".*$', ignores, re.MULTILINE)
    assert len(rules) > 30
    assert [line for line in rules if not re.search(r"# \w+", line)] == []


# ------------------------------------------------------------------------------------------------------- licences


def test_the_licence_is_the_full_apache_text() -> None:
    text = (REPO / "LICENSE").read_text(encoding="utf-8")
    assert "Apache License\n                           Version 2.0, January 2004" in text
    assert "9. Accepting Warranty or Additional Liability." in text
    assert "END OF TERMS AND CONDITIONS" in text
