"""The one table of build flags.

From it come the options of `python -m ffpa_build` and of `build.sh`, the environment variables that a wheel build reads
(`ffpa_build.environment`), the options of `ci/wheels.py` and the page `docs/build-flags.md` (`ffpa_build.flags_page`).
Order of precedence: option, variable, fallback variable, preset.
"""

from __future__ import annotations

from dataclasses import dataclass

SELECTION, BUILD, INSTALL = "selection", "build", "install"
"""Groups: what is compiled; how it is compiled; what only `install` (build.sh) takes."""

QUANT_SPLIT_D = "quant_split_d"
"""The `opt_in` of families.toml that ENABLE_FFPA_QUANT_SPLIT_D turns on."""


@dataclass(frozen=True)
class Flag:
    """One choice.

    Attributes:
        argument: its name in the code: a keyword of `Selection.make`, or of the step that takes it.
        group: SELECTION, BUILD or INSTALL.
        options: its forms on a command line; none for what only a variable says.
        variable: the environment variable, or "".
        fallback: a variable of other projects that is looked at where neither option nor `variable` is given, or "".
        default: in words.
        allowed: in words.
        help: what it selects, one sentence without a full stop.
        metavar: stands for the value in help texts; "" for a flag that takes none.
        adds: for a variable that is 0 or 1: the argument and the values of it that 1 adds and 0 removes.
    """

    argument: str
    group: str
    options: tuple[str, ...]
    variable: str
    default: str
    allowed: str
    help: str
    metavar: str = ""
    fallback: str = ""
    adds: tuple[str, tuple[str, ...]] | None = None

    @property
    def is_switch(self) -> bool:
        """Whether the variable is 0 or 1."""
        return bool(self.variable) and not self.metavar


FLAGS = (
    Flag(
        "preset",
        SELECTION,
        ("--preset",),
        "FFPA_BUILD_PRESET",
        default="default",
        allowed="a table of variants/presets.toml",
        help="named selection; the other flags override its keys",
        metavar="NAME",
    ),
    Flag(
        "archs",
        SELECTION,
        ("--arch",),
        "FFPA_BUILD_ARCH",
        default="every arch",
        allowed="archs or aliases of variants/archs.toml (sm_120f, ada, 90), or all",
        help="compile targets",
        metavar="LIST",
        fallback="TORCH_CUDA_ARCH_LIST",
    ),
    Flag(
        "ext",
        SELECTION,
        ("--ext",),
        "FFPA_BUILD_EXT",
        default="all",
        allowed="extension families of variants/families.toml, all or none",
        help="extension families of kernels",
        metavar="LIST",
    ),
    Flag(
        "cuda_impl",
        SELECTION,
        (),
        "ENABLE_FFPA_CUDA_IMPL",
        default="1",
        allowed="0, 1",
        help="0 is --ext none: runtime and launcher without kernels",
    ),
    Flag(
        "cute_ext",
        SELECTION,
        (),
        "ENABLE_FFPA_CUTE_EXT",
        default="as --ext",
        allowed="0, 1",
        help="with or without the CuTe families: cute, fp8, fp4",
        adds=("ext", ("cute", "fp8", "fp4")),
    ),
    Flag(
        "tma_ext",
        SELECTION,
        (),
        "ENABLE_FFPA_TMA_EXT",
        default="as --ext",
        allowed="0, 1",
        help="with or without the families that load by TMA: tma, hopper",
        adds=("ext", ("tma", "hopper")),
    ),
    Flag(
        "head_dims",
        SELECTION,
        ("--headdim",),
        "FFPA_DEV_HEADDIMS",
        default="default",
        allowed="default, all, or multiples of 8 up to 1024",
        help="head dims; a call takes the next larger one that is compiled",
        metavar="LIST",
    ),
    Flag(
        "stages",
        SELECTION,
        ("--stages",),
        "FFPA_BUILD_STAGES",
        default="2,3",
        allowed="pipeline depths of variants/families.toml, or all",
        help="pipeline depths; a call takes the nearest one that is compiled",
        metavar="LIST",
    ),
    Flag(
        "dtypes",
        SELECTION,
        ("--dtype",),
        "FFPA_BUILD_DTYPES",
        default="bf16",
        allowed="bf16, fp16, or all",
        help="dtypes of the inputs",
        metavar="LIST",
    ),
    Flag(
        "input_fp16",
        SELECTION,
        (),
        "ENABLE_FFPA_CUDA_INPUT_FP16",
        default="as --dtype",
        allowed="0, 1",
        help="with or without fp16 inputs",
        adds=("dtypes", ("fp16",)),
    ),
    Flag(
        "acc",
        SELECTION,
        ("--acc",),
        "FFPA_BUILD_ACC",
        default="f32",
        allowed="f32, f16, or all",
        help="accumulators of the matrix products; f16 is for fp16 inputs only",
        metavar="LIST",
    ),
    Flag(
        "f16_acc",
        SELECTION,
        (),
        "ENABLE_FFPA_F16_ACC",
        default="as --acc",
        allowed="0, 1",
        help="with or without f16 accumulators; 1 needs fp16 inputs",
        adds=("acc", ("f16",)),
    ),
    Flag(
        "features",
        SELECTION,
        ("--features",),
        "FFPA_BUILD_FEATURES",
        default="bias,dropout",
        allowed="bias (masks in the dtype of the inputs), bias32 (float32 masks), dropout; all or none",
        help="optional features that kernels are compiled with, besides the plain kernel",
        metavar="LIST",
    ),
    Flag(
        "mask_fp32",
        SELECTION,
        (),
        "ENABLE_FFPA_CUDA_MASK_FP32",
        default="as --features",
        allowed="0, 1",
        help="with or without kernels that read float32 masks; without, such masks are converted",
        adds=("features", ("bias32",)),
    ),
    Flag(
        "quant_split_d",
        SELECTION,
        ("--quant-split-d",),
        "ENABLE_FFPA_QUANT_SPLIT_D",
        default="0",
        allowed="0, 1",
        help="quantised kernels for head dims beyond what stays in registers",
        adds=("opt_in", (QUANT_SPLIT_D,)),
    ),
    Flag(
        "debug",
        SELECTION,
        ("--debug-ext",),
        "ENABLE_FFPA_BUILD_DEBUG",
        default="none",
        allowed="fp16, fp8, fp4, all (or 1), none (or 0)",
        help="families whose kernel can be forced at run time (FFPA_FP16_FORCE_KERNEL and so on)",
        metavar="LIST",
    ),
    Flag(
        "packs",
        SELECTION,
        ("--pack",),
        "",
        default="all",
        allowed="packs of variants/packs.toml, or all",
        help="packs to write or install",
        metavar="LIST",
    ),
    Flag(
        "toolchain",
        BUILD,
        ("--toolchain",),
        "FFPA_BUILD_TOOLCHAIN",
        default="the one with default = true",
        allowed="a file of variants/toolchains/",
        help="the compiler",
        metavar="NAME",
    ),
    Flag(
        "cache",
        BUILD,
        ("--cache-dir",),
        "FFPA_BUILD_CACHE",
        default="the user's cache folder",
        allowed="a folder",
        help="where compiled kernels and compilers are kept between builds",
        metavar="DIR",
    ),
    Flag(
        "jobs",
        BUILD,
        ("-j", "--jobs"),
        "FFPA_BUILD_JOBS",
        default="from cores and free memory",
        allowed="a number >= 1",
        help="compiles at a time",
        metavar="N",
        fallback="MAX_JOBS",
    ),
    Flag(
        "nvcc_threads",
        BUILD,
        ("--nvcc-threads",),
        "FFPA_BUILD_NVCC_THREADS",
        default="nvcc's own",
        allowed="a number >= 1",
        help="threads of one nvcc; without effect on NVRTC, which the build says",
        metavar="N",
        fallback="NVCC_THREADS",
    ),
    Flag(
        "cxx",
        BUILD,
        (),
        "FFPA_BUILD_CXX",
        default="g++",
        allowed="a C++17 compiler with GCC's options, and arguments for it",
        help="the host compiler of the launcher; on Windows it is Visual C++",
        metavar="COMMAND",
        fallback="CXX",
    ),
    Flag(
        "ptxas_verbose",
        BUILD,
        ("--ptxas-verbose",),
        "",
        default="off",
        allowed="",
        help="print what ptxas reports on each kernel: registers, spills, stack",
    ),
    Flag(
        "editable",
        INSTALL,
        ("--editable",),
        "",
        default="off",
        allowed="",
        help="`pip install -e`: the runtime is used from src/, kernels are installed as data",
    ),
    Flag(
        "clean",
        INSTALL,
        ("--clean",),
        "",
        default="off",
        allowed="",
        help="first remove packs, wheels, the launcher in src/ and the compiled kernels in the cache",
    ),
    Flag(
        "shm",
        INSTALL,
        ("--shm",),
        "",
        default="off",
        allowed="on Linux, without --cache-dir",
        help="keep the cache in /dev/shm",
    ),
    Flag(
        "no_isolation",
        INSTALL,
        ("--no-isolation",),
        "",
        default="off",
        allowed="",
        help="build with the requirements of this Python instead of letting pip fetch them",
    ),
    Flag(
        "dry_run",
        INSTALL,
        ("--dry-run",),
        "",
        default="off",
        allowed="",
        help="print the plan and every command, and run nothing",
    ),
)


def flag(argument: str) -> Flag:
    """The row of an argument. Raises KeyError."""
    for row in FLAGS:
        if row.argument == argument:
            return row
    raise KeyError(argument)


def group(*names: str) -> tuple[Flag, ...]:
    return tuple(row for row in FLAGS if row.group in names)
