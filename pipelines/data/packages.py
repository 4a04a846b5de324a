"""Public packages whose pages are training or validation data, and how they are fetched and listed.

A package stands in one split only, so no page of a validation package is ever trained on. Fetching uses the ordinary
clients of the user's machine (`npm pack`, `apt-get download`), so mirrors and proxies of that machine apply.
"""

import os
import random
import re
import shutil
import subprocess
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from watersmeet.core.errors import WatersmeetError


class PackageError(WatersmeetError):
    """A package could not be fetched or unpacked."""


@dataclass(frozen=True, kw_only=True)
class Package:
    """One package: `pages` are globs below its folder (empty: it only lends styles, fonts or icons).

    `cap` bounds how many pages are used; `weight` is how often a page is drawn when scroll positions are handed out.
    """

    name: str
    client: str  # "npm" or "apt"
    split: str = "train"
    pages: tuple[str, ...] = ()
    skip: str = r"$^"  # regular expression on the path below the package
    cap: int = 400
    weight: float = 1.0
    licence: str = "MIT"

    @property
    def folder(self) -> str:
        return self.name.lstrip("@").replace("/", "-")


_DOC = ("usr/share/**/*.html",)
_SPHINX_SKIP = r"genindex|/search\.html|/_static/|_modules/.*__|/py-modindex"

PACKAGES: tuple[Package, ...] = (
    # validation: never trained on
    Package(name="startbootstrap-sb-admin-2", client="npm", split="val", pages=("*.html",)),
    Package(name="material-dashboard", client="npm", split="val", pages=("pages/*.html", "*.html", "docs/*.html")),
    # themes and component pages
    Package(name="startbootstrap-sb-admin", client="npm", pages=("dist/*.html",), weight=6),
    Package(name="startbootstrap-simple-sidebar", client="npm", pages=("dist/*.html",), weight=6),
    Package(name="html5-boilerplate", client="npm", pages=("dist/*.html",), weight=0.5),
    Package(name="milligram", client="npm", pages=("*.html",), weight=4),
    Package(
        name="govuk-frontend",
        client="npm",
        pages=("dist/govuk/components/*/*.html",),
        cap=0,  # fragments without a page around them: the generator places several on one page
    ),
    Package(name="libjs-spectre-docs", client="apt", pages=_DOC, weight=2.5),
    Package(name="node-nouislider-doc", client="apt", pages=_DOC, skip="tests/", weight=2),
    # documentation sites
    Package(
        name="sqlite3-doc",
        client="apt",
        pages=_DOC,
        skip=r"releaselog|c3ref|syntax/|/session/",
        cap=260,
        licence="public domain",
    ),
    Package(name="python3.11-doc", client="apt", pages=_DOC, skip=_SPHINX_SKIP, cap=200, weight=0.7, licence="PSF"),
    Package(
        name="python-django-doc",
        client="apt",
        pages=_DOC,
        skip=_SPHINX_SKIP + "|releases/",
        cap=260,
        weight=0.7,
        licence="BSD",
    ),
    Package(
        name="python-pandas-doc", client="apt", pages=_DOC, skip=_SPHINX_SKIP + "|/generated/", cap=320, licence="BSD"
    ),
    Package(name="sphinx-doc", client="apt", pages=_DOC, skip=_SPHINX_SKIP, cap=120, weight=0.7, licence="BSD"),
    Package(name="mkdocs-doc", client="apt", pages=_DOC, weight=0.8, licence="BSD"),
    Package(
        name="rust-doc",
        client="apt",
        pages=_DOC,
        skip=r"/(arch|simd|core|alloc)/|print\.html",
        cap=320,
        licence="MIT or Apache-2.0",
    ),
    Package(
        name="openjdk-17-doc",
        client="apt",
        pages=_DOC,
        skip=r"class-use|package-use|-index",
        cap=200,
        licence="GPL-2 with exception",
    ),
    Package(name="gimp-help-en", client="apt", pages=_DOC, cap=220, licence="GFDL"),
    Package(name="libgtk-4-doc", client="apt", pages=_DOC, skip=r"-x11|-wayland", cap=160, licence="LGPL-2+"),
    Package(name="octave-doc", client="apt", pages=_DOC, skip="XREF", cap=80, licence="GPL-3"),
    Package(
        name="libboost1.81-doc",
        client="apt",
        pages=_DOC,
        skip=r"doc/html/[A-Z_0-9]+\.html|/test/|/example/",
        cap=260,
        licence="BSL-1.0",
    ),
    Package(
        name="lilypond-doc-html",
        client="apt",
        pages=_DOC,
        skip=r"\.[a-z][a-z]\.html|-big-page|/internals/",
        cap=160,
        licence="GFDL",
    ),
    # styles, icons and fonts for generated pages
    Package(name="@adminkit/core", client="npm"),
    Package(name="bootstrap", client="npm"),
    Package(name="bootswatch", client="npm"),
    Package(name="bulma", client="npm"),
    Package(name="@picocss/pico", client="npm"),
    Package(name="water.css", client="npm"),
    Package(name="bootstrap-icons", client="npm"),
    Package(name="@fortawesome/fontawesome-free", client="npm", licence="CC-BY-4.0, OFL-1.1, MIT"),
    Package(name="lucide-static", client="npm", licence="ISC"),
    *(
        Package(name=f"@fontsource/{f}", client="npm", licence="OFL-1.1")
        for f in ("inter", "roboto", "open-sans", "lato", "poppins", "merriweather")
    ),
)

# Debian packages link to files of other packages; these stand in for what is not unpacked here.
_STAND_INS = {
    "bootstrap.min.css": "bootstrap/dist/css/bootstrap.min.css",
    "font-awesome.min.css": "fortawesome-fontawesome-free/css/all.min.css",
}


def package(name: str) -> Package:
    """The package called `name`; PackageError when the list has none."""
    for candidate in PACKAGES:
        if candidate.name == name:
            return candidate
    raise PackageError(f"no package is called {name!r}; the list is in pipelines/data/packages.py")


def fetch(root: Path, packages: tuple[Package, ...] = PACKAGES, say: Callable[[str], None] = print) -> list[str]:
    """Fetch and unpack what is missing below `root`/packages. Returns the names that could not be had."""
    downloads, target = root / "downloads", root / "packages"
    downloads.mkdir(parents=True, exist_ok=True)
    target.mkdir(parents=True, exist_ok=True)
    missing = []
    for item in packages:
        if (target / item.folder).is_dir():
            continue
        say(f"fetching {item.name} ({item.client})")
        try:
            archive = _download(item, downloads)
            _unpack(item, archive, target)
        except (PackageError, OSError, subprocess.SubprocessError, tarfile.TarError) as error:
            missing.append(item.name)
            say(f"{item.name} is left out: {error}")
    repair_links(target)
    return missing


def _download(item: Package, folder: Path) -> Path:
    before = set(folder.iterdir())
    command = ["npm", "pack", "--silent", item.name] if item.client == "npm" else ["apt-get", "download", item.name]
    if shutil.which(command[0]) is None:
        raise PackageError(f"{command[0]} is not on this machine, but {item.name} comes through it")
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=600)
    fresh = [p for p in folder.iterdir() if p not in before]
    if not fresh:  # the client may have kept a copy of an earlier run
        stem = item.folder if item.client == "npm" else item.name + "_"
        fresh = [p for p in folder.glob(f"{stem}*") if p.suffix in (".tgz", ".deb")]
    if done.returncode or not fresh:
        raise PackageError(f"{' '.join(command)} ended with {done.returncode}: {done.stderr.strip()[-200:]}")
    return max(fresh, key=lambda p: p.stat().st_mtime)


def _unpack(item: Package, archive: Path, target: Path) -> None:
    work = target / f".{item.folder}.part"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    if archive.suffix == ".deb":
        subprocess.run(["dpkg-deb", "-x", str(archive), str(work)], check=True, capture_output=True, timeout=600)
        os.replace(work, target / item.folder)
        return
    with tarfile.open(archive) as tar:
        tar.extractall(work, filter="data")
    os.replace(work / "package", target / item.folder)
    shutil.rmtree(work)


def repair_links(packages_dir: Path) -> int:
    """Point dangling style sheet links at a stand-in from another package; returns how many were repaired."""
    count = 0
    for path in packages_dir.glob("*-doc/**/*.css"):
        stand_in = _STAND_INS.get(path.name)
        if path.is_symlink() and not path.exists() and stand_in and (packages_dir / stand_in).exists():
            path.unlink()
            path.symlink_to((packages_dir / stand_in).resolve())
            count += 1
    return count


_REMOTE_STYLE = re.compile(r"<link[^>]+stylesheet[^>]*>", re.I)


def needs_network(html: str) -> bool:
    """True when every style sheet of the page is remote, so that it would render bare without a network."""
    links = _REMOTE_STYLE.findall(html)
    remote = [link for link in links if re.search(r"href=[\"']?(https?:)?//", link)]
    return bool(links) and len(remote) == len(links) and "<style" not in html


def pages_of(item: Package, packages_dir: Path) -> list[Path]:
    """Usable pages of one package, sorted by a fixed shuffle so that a cap takes a fair part of them."""
    base = packages_dir / item.folder
    found = {p for glob in item.pages for p in base.glob(glob) if p.is_file() and not p.is_symlink()}
    skip = re.compile(item.skip)
    names = sorted(str(p.relative_to(base)) for p in found if not p.name.startswith(".view"))
    names = [n for n in names if not skip.search(n)]
    random.Random(item.name).shuffle(names)
    out: list[Path] = []
    for name in names:
        if len(out) >= item.cap:
            break
        path = base / name
        size = path.stat().st_size
        if size < 400 or size > 3_000_000:
            continue
        head = path.read_text("utf-8", "replace")[:20_000]
        if 'http-equiv="refresh"' in head.lower() or "<frameset" in head.lower() or needs_network(head):
            continue
        out.append(path)
    return out


def all_pages(packages_dir: Path, split: str) -> Iterator[tuple[Package, Path]]:
    """(package, page) of every package of `split`."""
    for item in PACKAGES:
        if item.split == split and item.pages:
            for path in pages_of(item, packages_dir):
                yield item, path
