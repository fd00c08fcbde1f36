"""The hatchling hooks of every distribution: version, pins, contents.

`packages/<distribution>/hatch_build.py` imports both classes; the table `tool.hatch.*.hooks.custom` of its
pyproject.toml says which pack it is (`pack = "core"`), or says nothing in the meta distribution. The module is
imported before any compiler is installed, so what compiles is imported where it is called.
"""

from __future__ import annotations

import importlib.metadata
import os
import sysconfig
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

from ffpa_attn.library import file_name
from ffpa_build import environment, sbom
from ffpa_build.distributions import CORE_PACK, extras
from ffpa_build.errors import BuildError, SelectionError
from ffpa_build.model import Spec
from ffpa_build.sbom import Material
from ffpa_build.spec import load_spec

SHARED_FOLDERS = ("csrc", "src/ffpa_attn", "src/ffpa_build", "variants")
"""What an sdist carries besides its own folder; the meta distribution goes without csrc."""
BUILT_SUFFIXES = (".so", ".dll", ".pyd", ".o", ".cubin", ".pyc")
"""What may lie among the sources of a working tree without being one."""


def find_tree(root: str | Path) -> Path:
    """The folder with VERSION and variants/: the distribution's own in an sdist, two up in the tree."""
    root = Path(root)
    return root if (root / "variants").is_dir() else root.parent.parent


def sources(folder: Path) -> list[Path]:
    """The source files below a folder, sorted."""
    return [
        path
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.suffix not in BUILT_SUFFIXES and not path.name.startswith(".")
    ]


def shared_sources(tree: Path, with_kernels: bool) -> dict[str, str]:
    """Shared files of an sdist: absolute path -> path in the sdist, which is also the one in the tree."""
    files = [tree / "VERSION"]
    for folder in SHARED_FOLDERS:
        if with_kernels or folder != "csrc":
            files += sources(tree / folder)
    return {str(path): path.relative_to(tree).as_posix() for path in files}


def build_version(spec: Spec, pack: str | None) -> str:
    """VERSION, with the local label of a restricted build where the distribution holds kernels."""
    if pack is None:
        return spec.version
    from ffpa_build import api

    return api.distribution_version(spec, environment.selection(spec, os.environ), pack)


def tag(platform: str) -> str:
    """The tag of a wheel with the launcher, for a platform as `sysconfig` names it.

    Plain linux_x86_64: which manylinux the launcher deserves is auditwheel's verdict (ci/wheels.py).
    """
    return f"py3-none-{platform.replace('-', '_').replace('.', '_')}"


class FfpaMetadataHook(MetadataHookInterface):
    """Fills in the version and what follows from it: the pins between the distributions."""

    PLUGIN_NAME = "custom"

    def update(self, metadata: dict[str, Any]) -> None:
        spec = load_spec(find_tree(self.root))
        pack = self.config.get("pack")
        metadata["version"] = build_version(spec, pack)
        # A pin without a local label accepts every label of that version, so restricted wheels satisfy it (PEP 440).
        pin = f"=={spec.version}"
        core = spec.packs[CORE_PACK].distribution
        if pack != CORE_PACK:
            metadata["dependencies"] = [f"{core}{pin}"]
        if pack is None:
            metadata["optional-dependencies"] = {
                extra: [f"{distribution}{pin}" for distribution in distributions]
                for extra, distributions in extras(spec).items()
            }


class FfpaBuildHook(BuildHookInterface):
    """Adds what lies outside the distribution's folder: shared sources to an sdist, the built files to a wheel."""

    PLUGIN_NAME = "custom"

    @property
    def pack(self) -> str | None:
        return self.config.get("pack")

    def dependencies(self) -> list[str]:
        """The selected compiler, for wheels with kernels."""
        if self.target_name != "wheel" or self.pack is None:
            return []
        spec = load_spec(find_tree(self.root))
        found = environment.settings(spec, os.environ)
        return list(found.toolchain.requirements) if found.selection.exts else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        tree = find_tree(self.root)
        files: dict[str, str] = build_data["force_include"]
        self._scratch = tempfile.TemporaryDirectory(prefix="ffpa-wheel-")
        if self.target_name == "sdist":
            files.update(shared_sources(tree, with_kernels=self.pack is not None))
            self._note_commit(tree, Path(self._scratch.name), files)
        else:
            try:
                scratch = Path(self._scratch.name)
                if self.pack is None:
                    self._bill(scratch, tree, [], {}, build_data)
                else:
                    self._wheel(load_spec(tree), scratch, version == "editable", build_data)
            except BuildError as error:
                self._scratch.cleanup()
                self.app.abort(f"error: {error}")
            except BaseException:
                self._scratch.cleanup()
                raise

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        scratch = getattr(self, "_scratch", None)
        if scratch is not None:
            scratch.cleanup()

    def _wheel(self, spec: Spec, scratch: Path, editable: bool, build_data: dict[str, Any]) -> None:
        from ffpa_build import api
        from ffpa_build.toolchain import locate

        pack = spec.packs[str(self.pack)]
        found = environment.settings(spec, os.environ)
        for notice in found.notices:
            self.app.display_warning(notice)
        selection = replace(found.selection, packs=(pack.name,))
        expected = api.distribution_version(spec, selection, pack.name)
        if self.metadata.version != expected:
            raise SelectionError(
                f"this sdist has version {self.metadata.version}, but the selection makes {expected}: "
                "restrict the build when the sdist is made, or build from the source tree"
            )
        files: dict[str, str] = build_data["force_include_editable" if editable else "force_include"]
        materials: list[Material] = []
        facts: dict[str, str | None] = {}
        core = pack.name == CORE_PACK
        # The runtime is of use without kernels too: those of other packs run on it.
        if not core or api.expand(spec, selection, empty=True).variants:
            built = api.build_packs(
                selection,
                scratch,
                spec=spec,
                version=expected,
                toolchain=found.toolchain.name,
                cache_dir=found.cache,
                jobs=found.jobs,
                nvcc_threads=found.nvcc_threads,
            )[pack.name]
            for name in built.files:
                (built.path / name).chmod(0o644)
                files[str(built.path / name)] = f"{pack.package}/{name}"
            manifest = built.manifest
            facts["compiler"] = f"{manifest.compiler.name} {manifest.compiler.version}"
            facts["compiler-flags"] = " ".join(manifest.flags)
            facts["source-digest"] = manifest.source_digest
            tools = locate(found.toolchain, found.cache or api.default_cache_dir())
            materials += sbom.compiler_materials(found.toolchain, from_packages=bool(tools.site))
        if core:
            facts["host-compiler"] = self._runtime(spec.root, scratch, found.cxx, editable, files)
            number = importlib.metadata.version("apache-tvm-ffi")
            materials.append(Material("apache-tvm-ffi", number, "headers and library of the launcher"))
            build_data["pure_python"] = False
            build_data["tag"] = tag(sysconfig.get_platform())
        self._bill(scratch, spec.root, materials, facts, build_data)

    def _bill(
        self,
        scratch: Path,
        tree: Path,
        materials: list[Material],
        facts: dict[str, str | None],
        build_data: dict[str, Any],
    ) -> None:
        """Adds the bill of materials to the wheel."""
        name = self.metadata.core.raw_name
        file = scratch / f"{name}.cdx.json"
        text = sbom.render(name, self.metadata.version, materials, {**facts, "commit": sbom.commit(tree)})
        file.write_text(text, encoding="utf-8")
        file.chmod(0o644)
        build_data["sbom_files"].append(str(file))

    def _note_commit(self, tree: Path, scratch: Path, files: dict[str, str]) -> None:
        """Adds the commit to an sdist, so that a wheel made from it names the same one."""
        commit = sbom.commit(tree)
        if commit is not None:
            file = scratch / sbom.COMMIT_FILE
            file.write_text(f"{commit}\n", encoding="ascii")
            file.chmod(0o644)
            files[str(file)] = sbom.COMMIT_FILE

    def _runtime(self, tree: Path, scratch: Path, cxx: tuple[str, ...], editable: bool, files: dict[str, str]) -> str:
        """Adds the package and the launcher; returns what the launcher's compiler calls itself."""
        from ffpa_build.host_compiler import host_compiler
        from ffpa_build.launcher import build_launcher

        package = tree / "src" / "ffpa_attn"
        name = file_name()
        # The .pth file of an editable install points at src/, so the launcher has to lie there.
        compiler = host_compiler(cxx)
        launcher = build_launcher((package if editable else scratch) / name, compiler)
        if editable:
            return compiler.version()
        launcher.chmod(0o755)
        files[str(launcher)] = f"{package.name}/{name}"
        for path in sources(package):
            files[str(path)] = path.relative_to(tree / "src").as_posix()
        return compiler.version()
