"""Whether a sandbox can carry a harness at all: one exec of `sh`, one JSON object, and a clear refusal.

The script needs a POSIX shell and nothing else; a fact that needs a program which is not there is unknown,
not an error. It leaves nothing: what it tries in a folder it removes again.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence

from attrs import field, frozen

from inspan_core.errors import UnsupportedTarget
from inspan_core.sandbox import Sandbox
from inspan_runtime.install_target import PYTHON_CANDIDATES, PYTHON_CHECK
from inspan_runtime.preflight_script import filled

PREFLIGHT_LIMIT_S = 60.0
OUTPUT_LIMIT_BYTES = 64 * 1024
CLOCK_SLACK_S = 300.0
MIB = 1024 * 1024
SHELLS = ("sh", "bash", "dash", "ash", "busybox")
CERTIFICATES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/cert.pem",
    "/etc/ssl/ca-bundle.pem",
)
ARCHITECTURES = {"amd64": "x86_64", "arm64": "aarch64"}


@frozen(kw_only=True)
class Place:
    """A folder that files will be put into, or its nearest ancestor that exists.

    Attributes:
        path: As asked for.
        tried: What exists of it.
        writes: Whether a file could be made there.
        runs: Whether a program could be run from there.
        free_mib: Free space, or None where it cannot be told.
    """

    path: str
    tried: str
    writes: bool
    runs: bool
    free_mib: float | None = None


@frozen(kw_only=True)
class Facts:
    """What was found inside.

    Attributes:
        os: ``"linux"``, or empty where the sandbox cannot tell.
        arch: ``"x86_64"``, ``"aarch64"``, or empty likewise.
        libc: ``"glibc"``, ``"musl"``, or ``"none"`` where there is no dynamic loader.
        libc_version: For example ``"2.36"``, or None.
        user: The user id that commands have, or None.
        shells: {name: path} of `SHELLS`.
        python: Absolute path of a Python >= 3.8 with its standard library, or None.
        python_version: For example ``"3.11.2"``, or None.
        programs: {name: path, or None where it is missing} of the wanted utilities.
        certificates: The file of CA certificates, or None.
        places: The wanted folders.
        clock_skew_s: How far the sandbox's clock is ahead of the host's, or None.
        images: Digests that the provider knows the sandbox's image by, each ``sha256:...``.
    """

    os: str
    arch: str
    libc: str
    libc_version: str | None
    user: int | None
    shells: Mapping[str, str]
    python: str | None
    python_version: str | None
    programs: Mapping[str, str | None]
    certificates: str | None
    places: tuple[Place, ...]
    clock_skew_s: float | None
    images: tuple[str, ...]


@frozen(kw_only=True)
class Wanted:
    """What a harness needs of its sandbox.

    Attributes:
        session_dir: Absolute folder for the session's files; must be written to and run from.
        runtime_dirs: Candidate folders for runtimes: one of them must be written to and run from. None: the
            runtime is there already.
        architectures: As `Facts.arch`; empty: any.
        libcs: As `Facts.libc`; empty: any.
        python: Whether an interpreter must be there for the supervisor.
        programs: Utilities that must be there.
        certificates: Whether CA certificates must be there.
        free_mib: How much must be free in the session's folder, and where runtimes go.
        image: The pinned image, ``sha256:...`` or ``name@sha256:...``; None: any.
    """

    session_dir: str
    runtime_dirs: tuple[str, ...] = ()
    architectures: tuple[str, ...] = ()
    libcs: tuple[str, ...] = ()
    python: bool = True
    programs: tuple[str, ...] = ()
    certificates: bool = False
    free_mib: float = 0.0
    image: str | None = None


@frozen(kw_only=True)
class Preflight:
    """The facts, and what is wrong with them.

    Attributes:
        facts: What was found.
        problems: Sentences; with one of them a harness cannot work.
        warnings: Sentences; with them it may.
    """

    facts: Facts
    problems: tuple[str, ...] = field(factory=tuple)
    warnings: tuple[str, ...] = field(factory=tuple)


async def preflight(
    sandbox: Sandbox, wanted: Wanted, *, pythons: Sequence[str] = PYTHON_CANDIDATES
) -> Preflight:
    """Look at a sandbox.

    Args:
        sandbox: Where.
        wanted: What is asked for.
        pythons: Candidate interpreters, best first; the one of the sandbox's descriptor goes before them.

    Raises:
        UnsupportedTarget: There is no usable shell.
        SandboxGone, SandboxTransportError, ExecTimeout: As for `Sandbox.exec`.
    """
    descriptor = sandbox.descriptor
    named = descriptor.get("python")
    candidates = [*([named] if isinstance(named, str) else []), *pythons]
    before = time.time()
    result = await sandbox.exec(
        ["sh", "-c", preflight_script(wanted, candidates)],
        timeout_s=PREFLIGHT_LIMIT_S,
        cwd="/",
        output_limit_bytes=OUTPUT_LIMIT_BYTES,
    )
    facts = read_facts(result.stdout, (before + time.time()) / 2, _digests(descriptor))
    problems, warnings = judged(facts, wanted)
    return Preflight(facts=facts, problems=problems, warnings=warnings)


def require(found: Preflight) -> None:
    """Refuse a sandbox with problems.

    Raises:
        UnsupportedTarget: Naming all of them.
    """
    if found.problems:
        raise UnsupportedTarget("the sandbox cannot carry the harness: " + "; ".join(found.problems))


def preflight_script(wanted: Wanted, pythons: Sequence[str]) -> str:
    """Return the `sh` script that prints the facts as one JSON object."""
    return filled(
        {
            "pythons": pythons,
            "python_check": (PYTHON_CHECK,),
            "certificates": CERTIFICATES,
            "shells": SHELLS,
            "programs": wanted.programs,
            "places": (wanted.session_dir, *wanted.runtime_dirs),
        }
    )


def read_facts(output: bytes, host_clock_s: float, images: tuple[str, ...]) -> Facts:
    """Read what the script printed.

    Raises:
        UnsupportedTarget: It is not what the script prints: there is no usable shell.
    """
    try:
        found = json.loads(output)
        clock = found.get("clock")
        places = [
            Place(
                path=one["path"],
                tried=one["tried"],
                writes=one["writes"] is True,
                runs=one["runs"] is True,
                free_mib=None if one["free_kib"] is None else int(one["free_kib"]) / 1024,
            )
            for one in found["places"]
            if one is not None
        ]
        texts = [found["python"], found["libc_version"], found.get("python_version"), found["certificates"]]
        texts += [*found["shells"].values(), *found["programs"].values()]
        texts += [part for one in places for part in (one.path, one.tried)]
        if not places or not all(one is None or isinstance(one, str) for one in texts):
            raise TypeError("a text or a place is missing")
        return Facts(
            os=str(found["os"] or "").lower(),
            arch=ARCHITECTURES.get(found["arch"], found["arch"] or ""),
            libc=str(found["libc"]),
            libc_version=found["libc_version"],
            user=None if found["user"] is None else int(found["user"]),
            shells={name: path for name, path in found["shells"].items() if path is not None},
            python=found["python"],
            python_version=found.get("python_version"),
            programs={name: path for name, path in found["programs"].items() if name},
            certificates=found["certificates"],
            places=tuple(places),
            clock_skew_s=None if clock is None else int(clock) - host_clock_s,
            images=images,
        )
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise UnsupportedTarget(
            f"the sandbox has no usable POSIX shell: the preflight printed {output[:200]!r}"
        ) from error


def judged(facts: Facts, wanted: Wanted) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return (problems, warnings) of facts."""
    problems, warnings = _platform(facts, wanted), list[str]()
    missing = [name for name in wanted.programs if not facts.programs.get(name)]
    if missing:
        problems.append(f"it has no {', '.join(missing)}")
    if facts.certificates is None:
        said = f"it has no CA certificates ({', '.join(CERTIFICATES)})"
        (problems if wanted.certificates else warnings).append(said)
    problems += _image(facts, wanted)
    problems += _places(facts, wanted)
    if facts.clock_skew_s is not None and abs(facts.clock_skew_s) > CLOCK_SLACK_S:
        warnings.append(f"its clock is {facts.clock_skew_s:+.0f} s from this host's: TLS may fail")
    return tuple(problems), tuple(warnings)


def _platform(facts: Facts, wanted: Wanted) -> list[str]:
    problems = []
    if facts.os and facts.os != "linux":
        problems.append(f"it runs {facts.os}; supported: linux")
    if not facts.arch:
        problems.append("its architecture is unknown: it has no `uname`")
    elif wanted.architectures and facts.arch not in wanted.architectures:
        problems.append(f"its architecture is {facts.arch}; supported: {', '.join(wanted.architectures)}")
    if wanted.libcs and facts.libc not in wanted.libcs:
        version = f" {facts.libc_version}" if facts.libc_version else ""
        problems.append(f"its C library is {facts.libc}{version}; supported: {', '.join(wanted.libcs)}")
    if wanted.python and facts.python is None:
        problems.append("it has no Python 3.8 or newer with its standard library, which the supervisor needs")
    return problems


def _image(facts: Facts, wanted: Wanted) -> list[str]:
    if wanted.image is None:
        return []
    pinned = wanted.image.rpartition("@")[2]
    if not pinned.startswith("sha256:"):
        return [f"the pinned image {wanted.image!r} is no digest; expected sha256:... or name@sha256:..."]
    if not facts.images:
        return [f"its image is not known, so that it cannot be compared with the pinned {pinned}"]
    if pinned not in facts.images:
        return [f"its image is {', '.join(facts.images)}, pinned is {pinned}"]
    return []


def _places(facts: Facts, wanted: Wanted) -> list[str]:
    session, *runtimes = facts.places
    problems = [] if _fault(session, wanted) is None else [f"session files: {_fault(session, wanted)}"]
    faults = [_fault(one, wanted) for one in runtimes]
    if faults and None not in faults:
        problems.append("runtimes: " + ", ".join(str(one) for one in faults))
    return problems


def _fault(place: Place, wanted: Wanted) -> str | None:
    if not place.writes:
        return f"{place.path} cannot be written to"
    if not place.runs:
        return f"programs do not run from {place.path}"
    if place.free_mib is not None and place.free_mib < wanted.free_mib:
        return f"{place.path} has {place.free_mib:.0f} MiB free, {wanted.free_mib:.0f} are needed"
    return None


def _digests(descriptor: Mapping[str, object]) -> tuple[str, ...]:
    """Return the digests that a provider's descriptor names its image by."""
    more = descriptor.get("image_digests")
    names = [descriptor.get("image"), *(more if isinstance(more, list | tuple) else ())]
    found = [one.rpartition("@")[2] for one in names if isinstance(one, str)]
    return tuple(dict.fromkeys(one for one in found if one.startswith("sha256:")))
