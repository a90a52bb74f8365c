"""Build the page of ``wdae serve``: TypeScript types from the service's OpenAPI, then the files that ship.

    python scripts/build_page.py            # page/ -> src/wdae/serve/page
    python scripts/build_page.py --check    # says what differs from what is committed, changes nothing

Node 20 or newer and npm are needed; what they install is named in page/package-lock.json.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "page"
BUILT = ROOT / "src" / "wdae" / "serve" / "page"
TYPES = PAGE / "src" / "lib" / "openapi.d.ts"


def npm(*words: str, **environment: str) -> None:
    """Run npm in ``page/``; what it prints is shown where it fails."""
    done = subprocess.run(
        ["npm", *words], cwd=PAGE, env={**os.environ, **environment}, capture_output=True, text=True
    )
    if done.returncode:
        raise RuntimeError(f"npm {' '.join(words)} failed:\n{done.stdout}\n{done.stderr}")


def install() -> None:
    """What the lockfile names, once: npm leaves a copy of the lockfile where it has installed it."""
    there = PAGE / "node_modules" / ".package-lock.json"
    lock = PAGE / "package-lock.json"
    if not there.is_file() or there.stat().st_mtime < lock.stat().st_mtime:
        # Not `npm ci`: it asks for the builds of every platform, which not every registry has.
        npm("install", "--no-save", "--ignore-scripts")


def types(file: Path) -> None:
    """TypeScript types of everything that the service takes and gives."""
    from wdae.serve.app import create_app
    from wdae.serve.settings import Settings

    with tempfile.TemporaryDirectory() as folder:
        openapi = Path(folder) / "openapi.json"
        openapi.write_text(json.dumps(create_app(Settings(data=Path(folder))).openapi()))
        npm("exec", "--", "openapi-typescript", str(openapi), "--output", str(file))


def differences(folder: Path, kept: Path) -> list[str]:
    """Files that are not the same in two folders."""
    made, there = ({p.name: p.read_bytes() for p in one.glob("*")} for one in (folder, kept))
    return sorted(name for name in made.keys() | there.keys() if made.get(name) != there.get(name))


def check() -> list[str]:
    """What is committed and would be built otherwise."""
    install()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        types(folder / TYPES.name)
        stale = (
            [] if (folder / TYPES.name).read_bytes() == TYPES.read_bytes() else [str(TYPES.relative_to(ROOT))]
        )
        npm("run", "build", WDAE_PAGE_OUT=str(folder / "page"))
        return stale + [str((BUILT / n).relative_to(ROOT)) for n in differences(folder / "page", BUILT)]


def main(words: list[str]) -> None:
    if shutil.which("npm") is None:
        sys.exit("npm is not there: install Node 20 or newer")
    if "--check" in words:
        if stale := check():
            sys.exit(f"not what the source builds (run scripts/build_page.py): {', '.join(stale)}")
        return
    install()
    types(TYPES)
    npm("run", "check")
    npm("run", "build")
    print(BUILT)


if __name__ == "__main__":
    main(sys.argv[1:])
