"""Whether a sandbox can carry a harness at all: one exec of `sh`, one JSON object, and a clear refusal.

The script needs a POSIX shell and nothing else; a fact that needs a program which is not there is unknown,
not an error. It leaves nothing: what it tries in a folder it removes again.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from attrs import field, frozen

from inspan_core.errors import UnsupportedTarget
from inspan_core.harness import Target
from inspan_core.sandbox import Sandbox
from inspan_runtime.preflight_script import PYTHON_CANDIDATES, preflight_script

PREFLIGHT_LIMIT_S = 60.0
OUTPUT_LIMIT_BYTES = 64 * 1024
CLOCK_SLACK_S = 300.0
LEAST_MIB = 0.1  # What is left where the preflight's own few bytes no longer fit.
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
        barred: Why it was not even tried, or None.
    """

    path: str
    tried: str
    writes: bool
    runs: bool
    free_mib: float | None = None
    barred: str | None = None

    @property
    def fault(self) -> str | None:
        """Why nothing can live there, or None."""
        if self.barred is not None:
            return f"{self.path} {self.barred}"
        if not self.writes:
            full = ": no space is left" if self.free_mib is not None and self.free_mib < LEAST_MIB else ""
            return f"{self.path} cannot be written to{full}"
        return None if self.runs else f"programs do not run from {self.path}"


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
        roots: The candidate folders for runtimes, up to the first that does.
        ready: Runtimes with a ready marker that stand in a candidate, best first.
        word: What the host's folder says of itself where the sandbox sees one, or None.
        workdir: The task's folder: ``folder``, ``file`` or ``missing``.
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
    roots: tuple[Place, ...] = ()
    ready: tuple[str, ...] = ()
    word: str | None = None
    workdir: str = "folder"

    @property
    def target(self) -> Target:
        """As hooks see it."""
        return Target(
            os=self.os,
            arch=self.arch,
            libc="unknown" if self.libc == "none" else self.libc,
            libc_version=self.libc_version,
            python=self.python,
            python_version=self.python_version,
        )

    @property
    def root(self) -> str | None:
        """Where runtimes can live, or None."""
        return next((one.path for one in self.roots if one.fault is None), None)

    @property
    def tried(self) -> str:
        """What was found at each candidate for runtimes, for messages."""
        return "; ".join(one.fault for one in self.roots if one.fault is not None) or "nothing was tried"


@frozen(kw_only=True)
class Wanted:
    """What a harness needs of its sandbox.

    Attributes:
        session_dir: Absolute folder for the session's files; must be written to and run from. None: there
            are none.
        architectures: As `Facts.arch`; empty: any.
        libcs: As `Facts.libc`; empty: any.
        python: Whether an interpreter must be there for the supervisor.
        programs: Utilities that must be there.
        certificates: Whether CA certificates must be there.
        free_mib: How much must be free in the session's folder.
        image: The pinned image, ``sha256:...`` or ``name@sha256:...``; None: any.
    """

    session_dir: str | None = None
    architectures: tuple[str, ...] = ()
    libcs: tuple[str, ...] = ()
    python: bool = False
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
    sandbox: Sandbox,
    wanted: Wanted,
    *,
    roots: Sequence[str] = (),
    workdir: str = "/",
    pythons: Sequence[str] | None = None,
) -> Preflight:
    """Look at a sandbox.

    Args:
        sandbox: Where.
        wanted: What is asked for.
        roots: Candidate folders for runtimes, best first; that none does is no problem yet.
        workdir: The task's folder, in which no runtime may live.
        pythons: Candidate interpreters, best first; None: `usual_pythons`.

    Raises:
        UnsupportedTarget: There is no usable shell.
        SandboxGone, SandboxTransportError, ExecTimeout: As for `Sandbox.exec`.
    """
    script = preflight_script(
        places=() if wanted.session_dir is None else (wanted.session_dir,),
        roots=roots,
        workdir=workdir,
        programs=wanted.programs,
        shells=SHELLS,
        certificates=CERTIFICATES,
        pythons=usual_pythons(sandbox) if pythons is None else pythons,
    )
    before = time.time()
    result = await sandbox.exec(
        ["sh", "-c", script],
        timeout_s=PREFLIGHT_LIMIT_S,
        cwd="/",
        output_limit_bytes=OUTPUT_LIMIT_BYTES,
    )
    facts = read_facts(result.stdout, (before + time.time()) / 2, _digests(sandbox.descriptor))
    problems, warnings = judged(facts, wanted)
    return Preflight(facts=facts, problems=problems, warnings=warnings)


def usual_pythons(sandbox: Sandbox) -> tuple[str, ...]:
    """Return the interpreter that a provider's descriptor names, and the usual ones."""
    named = sandbox.descriptor.get("python")
    return (named, *PYTHON_CANDIDATES) if isinstance(named, str) else PYTHON_CANDIDATES


def require(found: Preflight) -> None:
    """Refuse a sandbox with problems.

    Raises:
        UnsupportedTarget: Naming all of them.
    """
    if found.problems:
        raise UnsupportedTarget("the sandbox cannot carry the harness: " + "; ".join(found.problems))


def read_facts(output: bytes, host_clock_s: float, images: tuple[str, ...]) -> Facts:
    """Read what the script printed.

    Raises:
        UnsupportedTarget: It is not what the script prints: there is no usable shell.
    """
    try:
        found = json.loads(output.decode("utf-8", "surrogateescape"))
        clock = found.get("clock") or ""
        places, roots = (_read_places(found[name]) for name in ("places", "roots"))
        ready = [one for one in found["ready"] if one is not None]
        texts = [found["python"], found["libc_version"], found.get("python_version"), found["certificates"]]
        texts += [*found["shells"].values(), *found["programs"].values(), *ready, found["word"]]
        if not all(one is None or isinstance(one, str) for one in texts):
            raise TypeError("a text is missing")
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
            places=places,
            clock_skew_s=int(clock) - host_clock_s if clock.isdecimal() else None,
            images=images,
            roots=roots,
            ready=tuple(ready),
            word=found["word"],
            workdir=str(found["workdir"]),
        )
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise UnsupportedTarget(
            f"the sandbox has no usable POSIX shell: the preflight printed {output[:200]!r}"
        ) from error


def _read_places(found: Sequence[Mapping[str, Any] | None]) -> tuple[Place, ...]:
    places = tuple(
        Place(
            path=one["path"],
            tried=one["tried"],
            writes=one["writes"] is True,
            runs=one["runs"] is True,
            free_mib=None if one["free_kib"] is None else int(one["free_kib"]) / 1024,
            barred=one["barred"],
        )
        for one in found
        if one is not None
    )
    texts = [part for one in places for part in (one.path, one.tried, one.barred or "")]
    if not all(isinstance(one, str) for one in texts):
        raise TypeError("a place is missing")
    return places


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
    if wanted.session_dir is not None and not facts.places:
        return [f"session files: nothing was told of {wanted.session_dir}"]
    return [f"session files: {one}" for one in map(partial(_fault, wanted), facts.places) if one is not None]


def _fault(wanted: Wanted, place: Place) -> str | None:
    if place.fault is not None or place.free_mib is None or place.free_mib >= wanted.free_mib:
        return place.fault
    return f"{place.path} has {place.free_mib:.0f} MiB free, {wanted.free_mib:.0f} are needed"


def _digests(descriptor: Mapping[str, object]) -> tuple[str, ...]:
    """Return the digests that a provider's descriptor names its image by."""
    more = descriptor.get("image_digests")
    names = [descriptor.get("image"), *(more if isinstance(more, list | tuple) else ())]
    found = [one.rpartition("@")[2] for one in names if isinstance(one, str)]
    return tuple(dict.fromkeys(one for one in found if one.startswith("sha256:")))
