"""`build.py dist`: a static folder that any web server can host, the npm package, and the wheel for any Pyodide."""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import shutil
from pathlib import Path
from typing import Any

from capstan_host.chat_model import SMOLLM2
from capstan_host.digests import complete_digests
from capstan_host.model_arguments import BUNDLED, about_model, check_model
from capstan_host.terminal import say

from .. import BUILD, ROOT, SITE
from ..bundles import ENTRIES, MCP, ON_DEMAND, bundle, bundle_on_demand, bundle_small
from ..carried_wheels import CARRIED, DETECTOR
from ..compressed import downloads, precompress, unpack_snapshot
from ..environment import ensure, run_tool
from ..notices import NOTICES, notices, onnxruntime_notices, python_version
from ..ready_made import READY, kept_headers
from ..site import RUNTIMES, VENDORED, assemble
from ..wheels import build_wheel
from .docs import build_site

__all__ = ["GROUP", "add_arguments", "check", "run"]

GROUP = "dev"
TARGET = BUILD / "dist"
BILL = "sbom.cdx.json"
HARNESS = ("harness.html", "harness.js")
"""The page for headless browsers: the npm package has it, a published site and a bundler's output do not."""
KEPT_OFFLINE = {".css", ".html", ".js", ".json", ".mjs", ".png", ".svg", ".wasm", ".webmanifest", ".whl", ".zip"}
"""The endings of files that the service worker keeps."""
PACKAGE = "capstan-webgpu"
BESIDE = {
    "ai": [],
    "agent": ["--external:./mcp.js"],
    "chat": [f"--external:{name}" for name in ON_DEMAND],
    "prompt-api": [],
}
"""The package's other entries, as capstan-webgpu/NAME, and how they are bundled; they import the first one."""
JSX = sorted((ROOT / "web/jsx").glob("*.d.ts"))
"""Types of the element in the markup of frameworks. They augment modules of theirs, so each is an import of its own."""
WITH_EFFECTS = ("chat", "prompt-api")
"""The entries that define an element or a global when they are imported."""
IN_DEVELOPMENT = "dev/{}.jsx"
"""An entry for development servers. Vite up to 7 bundles dependencies into a folder of its own, away from the files
that they name by `new URL`; it does not move packages whose entry has this ending."""
SPECIFICATION = "@ai-sdk/provider"
NPM_FIELDS = ("name", "version", "description", "license", "author", "type")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `dist`."""
    parser.add_argument(
        "--url",
        type=site_url,
        metavar="URL",
        help="the address that the site will have, so that links to it have a preview picture",
    )
    parser.add_argument("--notices", action="store_true", help="only write buildtools/THIRD_PARTY_NOTICES.md again")


def site_url(text: str) -> str:
    """A folder's address, with a slash at its end."""
    if not re.match(r"https?://[^/]", text):
        raise argparse.ArgumentTypeError(f"{text!r} is no address; give one that begins with https://")
    return text.rstrip("/") + "/"


def check(args: argparse.Namespace) -> None:
    """The bundled model has to be there."""
    if not args.notices:
        check_model(BUNDLED)


def run(args: argparse.Namespace) -> int:
    """Write build/dist/site with the documentation, the package for npm and the wheel, and print their paths."""
    if args.notices:
        NOTICES.write_text(notices(), encoding="utf-8")
        print(NOTICES)
        return 0
    assemble()
    if not kept_headers():
        say(f"nothing is ready-made for {SMOLLM2.title}: build.py run downloads it, and this command then adds it")
    shutil.rmtree(TARGET, ignore_errors=True)
    site = static_folder(TARGET / "site", args.url)
    (site / BILL).write_text(json.dumps(bill_of_materials(), indent=1) + "\n")
    precompress(site)
    say("before the first token a page downloads, without the page itself and the model:")
    for runtime in RUNTIMES:
        found = downloads(site, runtime)
        raw, gzipped, brotli = (f"{size / 1e6:.1f} MB" for size in (found.raw, found.gzip, found.br))
        say(f"for {runtime} {found.files} files: {raw} as they are, {gzipped} with gzip, {brotli} with brotli")
    say("the documentation, in docs/")
    ensure("docs")
    build_site(site / "docs", demo=True)
    print(site)
    print(npm_package(TARGET))
    print(shutil.copy(build_wheel(BUILD / "cache/dist-wheel"), TARGET))
    return 0


def static_folder(target: Path, url: str | None = None) -> Path:
    """The demo page, the library, the bundled model and the licences. The isolation headers are welcome, not needed."""
    shutil.copytree(SITE, target, ignore=shutil.ignore_patterns(*HARNESS, "blank.html"))
    shutil.copytree(BUNDLED, target / "models" / BUNDLED.name)
    for written in complete_digests(target / "models" / BUNDLED.name):
        say(f"{written} was written: {BUNDLED} lacks it, or has one of other weights")
    # Relative: the folder may lie anywhere.
    index = [{"name": BUNDLED.name, "url": f"models/{BUNDLED.name}/", **about_model(BUNDLED)}]
    (target / "models/index.json").write_text(json.dumps(index))
    copy_licences(target)
    unpack_snapshot(target)
    if url is not None:
        write_address(target / "index.html", url)
    work_offline(target)
    return target


def write_address(page: Path, url: str) -> None:
    """Name the page and its preview picture by whole addresses: sites that show a preview take no others."""
    text = page.read_text(encoding="utf-8")
    text = re.sub(r'(<meta property="og:image" content=")\./', rf"\g<1>{url}", text, count=1)
    own = f'    <meta property="og:url" content="{url}" />\n'
    page.write_text(
        text.replace('    <meta property="og:type"', own + '    <meta property="og:type"', 1), encoding="utf-8"
    )


def work_offline(site: Path) -> None:
    """Add a service worker that keeps the page, the library and what it loads for a model on WebGPU or the CPU; models
    keep themselves."""
    bundle(ROOT / "web/site/offline.ts", site / "offline.js")
    page = site / "index.html"
    text = page.read_text(encoding="utf-8")
    page.write_text(text.replace("</head>", '  <script type="module" src="./offline.js"></script>\n  </head>', 1))
    names = sorted(path.relative_to(site).as_posix() for path in site.rglob("*") if path.suffix in KEPT_OFFLINE)
    files = [name for name in names if not name.startswith("models/") or name == "models/index.json"]
    version = hashlib.sha256()
    for name in files:
        version.update(f"{name}\0".encode() + (site / name).read_bytes())
    index = json.loads((site / "capstan/python.json").read_text(encoding="utf-8"))
    snapshots = [f"capstan/{index['snapshot'][form]}" for form in ("unpacked", "file")]
    given = {"VERSION": version.hexdigest()[:16], "FILES": files, "SNAPSHOTS": snapshots}
    defined = [f"--define:{name}={json.dumps(value)}" for name, value in given.items()]
    bundle(ROOT / "web/site/service_worker.ts", site / "service_worker.js", defined)


def npm_package(target: Path) -> Path:
    """The library alone, with its types, packed by npm."""
    package = BUILD / "npm"
    shutil.rmtree(package, ignore_errors=True)
    shutil.copytree(SITE / "capstan", package / "capstan", ignore=shutil.ignore_patterns(READY))
    forget_ready(package / "capstan/python.json")
    copy_licences(package)
    for name in ("README.md", "CHANGELOG.md"):
        if (ROOT / name).exists():
            shutil.copy(ROOT / name, package)
    declare_types(package / "types")
    copy_source_maps(package / "capstan")
    (package / "bin").mkdir()
    shutil.copy(ROOT / "web/bin/capstan-webgpu.mjs", package / "bin")
    bundle(ENTRIES["capstan"], package / "index.js", ["--alias:capstan-assets=" + str(named_assets(package))])
    for name, flags in BESIDE.items():
        first = [f"--alias:{PACKAGE}=./index.js", "--external:./index.js"]
        bundle(ENTRIES[name], package / f"{name}.js", [*flags, *first])
    bundle_on_demand(package)
    bundle_small(MCP, package / "mcp.js")
    source = json.loads((ROOT / "package.json").read_text(encoding="utf-8"))
    entries = {".": ("capstan", "index")} | {f"./{name}": (ENTRIES[name].stem, name) for name in BESIDE}
    (package / "dev").mkdir()
    for _, name in entries.values():
        (package / IN_DEVELOPMENT.format(name)).write_text(f'export * from "../{name}.js";\n')
    manifest = {
        **{field: source[field] for field in NPM_FIELDS},
        "exports": {
            **{
                entry: {
                    "types": f"./types/{types}.d.ts",
                    "development": f"./{IN_DEVELOPMENT.format(name)}",
                    "default": f"./{name}.js",
                }
                for entry, (types, name) in entries.items()
            },
            **{f"./jsx/{path.name.removesuffix('.d.ts')}": {"types": f"./types/jsx_{path.name}"} for path in JSX},
            # The client alone, which names no files: for bundlers that would take each one for a part of the page.
            "./capstan/capstan.js": {"types": "./types/capstan.d.ts", "default": "./capstan/capstan.js"},
            "./capstan/*": "./capstan/*",
        },
        "bin": {"capstan-webgpu": "bin/capstan-webgpu.mjs"},
        "sideEffects": [
            place for name in WITH_EFFECTS for place in (f"./{name}.js", f"./{IN_DEVELOPMENT.format(name)}")
        ],
        # types/ai.d.ts names it; the AI SDK brings it, and pages without the SDK may have any version.
        "peerDependencies": {SPECIFICATION: "*"},
        "peerDependenciesMeta": {SPECIFICATION: {"optional": True}},
        # Pyodide imports it in Node only.
        "browser": {"ws": False},
        "types": "./types/capstan.d.ts",
        "files": [
            "index.js",
            *(f"{name}.js" for name in BESIDE),
            *(name.removeprefix("./") for name in ON_DEMAND),
            "mcp.js",
            "bin",
            "capstan",
            "dev",
            "types",
            "*.md",
            "*.txt",
        ],
    }
    (package / "package.json").write_text(json.dumps(manifest, indent=2) + "\n")
    printed = run_tool(["npm", "pack", package, "--pack-destination", target, "--silent"], "check build/npm")
    return target / printed.strip().splitlines()[-1]


def forget_ready(place: Path) -> None:
    """A package has nothing ready-made: which models its pages take is not known."""
    index = json.loads(place.read_text(encoding="utf-8"))
    del index["ready"]
    place.write_text(json.dumps(index), encoding="utf-8")


def named_assets(package: Path) -> Path:
    """A module in the place of web/src/page/assets_beside.ts that names each file the way that bundlers look for: they
    copy what `new URL("...", import.meta.url)` names, and put its new address there."""
    names = sorted(path.relative_to(package).as_posix() for path in (package / "capstan").rglob("*") if path.is_file())
    entries = [
        f"  {json.dumps(name.removeprefix('capstan/'))}: at(new URL({json.dumps('./' + name)}, import.meta.url)),"
        for name in names
        if Path(name).name not in ("capstan.js", *HARNESS) and not name.endswith(".map")
    ]
    made = BUILD / "cache/named_assets.ts"
    made.parent.mkdir(parents=True, exist_ok=True)
    # Turbopack's addresses have no origin.
    at = "const at = ({ href }: URL): string => new URL(href, location.href).href;"
    head = "export const defaultAssets = () => ({ base: location.href, places: {"
    made.write_text("\n".join([at, head, *entries, "} });", ""]))
    return made


def copy_source_maps(assets: Path) -> None:
    """The maps that onnxruntime-web's and Pyodide's modules name: development servers read them, and complain of each
    one that is not there."""
    for folder, source in VENDORED.items():
        for module in (assets / folder).glob("*js"):
            source_map = source / f"{module.name}.map"
            if source_map.is_file():
                shutil.copy(source_map, module.parent)


def declare_types(target: Path) -> None:
    """The client's declarations and those that they name."""
    tsc = ROOT / "node_modules/typescript/bin/tsc"
    made = BUILD / "cache/types"
    shutil.rmtree(made, ignore_errors=True)
    flags: list[str | Path] = ["--noEmit", "false", "--declaration", "--emitDeclarationOnly", "--outDir", made]
    run_tool(["node", tsc, "--project", "tsconfig.json", *flags], "mend what build.py check reports")
    target.mkdir(parents=True)
    names = ["capstan", *(ENTRIES[name].stem for name in BESIDE)]
    # Those that are named on the way are after them in the list.
    for name in names:
        declared = next(made.rglob(f"web/src/*/{name}.d.ts")).read_text(encoding="utf-8")
        beside = r"""((?:from|import\(|import) ?["'])\.(?:/|\./\w+/)(\w+)(?=["'])"""
        names += sorted({found for _, found in re.findall(beside, declared)} - set(names))
        # Resolvers that work like Node's need the extension.
        whole = re.sub(beside, r"\1./\2.js", declared)
        (target / f"{name}.d.ts").write_text(whole, encoding="utf-8")
    for path in JSX:
        shutil.copy(path, target / f"jsx_{path.name}")


def bill_of_materials() -> dict[str, Any]:
    """The site's contents as CycloneDX: npm's own list of its packages, and the wheels that the page loads."""
    remedy = "install npm 9.5 or newer, which writes software bills of materials, and run this again"
    printed = run_tool(["npm", "sbom", "--sbom-format", "cyclonedx", "--loglevel=error"], remedy)
    bill: dict[str, Any] = json.loads(printed)
    # With --omit dev npm leaves out packages that a tool needs, too.
    lock = json.loads((ROOT / "package-lock.json").read_text(encoding="utf-8"))["packages"].items()
    tools = {f"{place.rpartition('node_modules/')[2]}@{each['version']}" for place, each in lock if each.get("dev")}
    bill["components"] = [each for each in bill["components"] if each["bom-ref"] not in tools]
    bill["dependencies"] = [each for each in bill["dependencies"] if each["ref"] not in tools]
    for each in bill["dependencies"]:
        each["dependsOn"] = [name for name in each["dependsOn"] if name not in tools]
    # npm gives the name of the checkout's folder.
    bill["metadata"]["component"]["name"] = json.loads((ROOT / "package.json").read_text(encoding="utf-8"))["name"]
    packages = {name: python_version(name) for name in ("protobuf", "onnx", "jinja2", "markupsafe")}
    packages |= {each.package: each.version for each in (*CARRIED, DETECTOR)}
    for name, version in packages.items():
        address = f"pkg:pypi/{name}@{version}"
        component = {"type": "library", "bom-ref": address, "name": name, "version": version, "purl": address}
        bill["components"].append(component)
    return bill


def copy_licences(target: Path) -> None:
    """Our licence and those of the bundled parts."""
    shutil.copy(ROOT / "LICENSE", target)
    shutil.copy(NOTICES, target)
    shutil.copy(onnxruntime_notices(), target / "onnxruntime-ThirdPartyNotices.txt")
