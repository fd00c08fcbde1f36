"""The command line of the sweep, parsed and checked."""

from __future__ import annotations

import argparse
import dataclasses
import pathlib
from collections.abc import Sequence

from ffpa_attn.bench.cases import CPU_SIZES, DTYPES, GPU_SIZES, QUICK_SIZES, TASKS, Sizes
from ffpa_attn.bench.subjects import CUDA_IMPLS, FWD_BACKENDS

MAX_HEAD_DIM = 1024
GPU_HEAD_DIMS = (64, 128, 256, 320, 512, 768, 1024)
QUICK_HEAD_DIMS = (64, 128, 512)
CPU_HEAD_DIMS = (64, 128)


@dataclasses.dataclass(frozen=True)
class Options:
    """What a sweep measures and where its results go."""

    fwd_backend: str
    cuda_impl: str
    tasks: tuple[str, ...]
    head_dims: tuple[int, ...]
    dtypes: tuple[str, ...]
    sizes: Sizes
    causal: bool
    quick: bool
    rest: float | None
    peers: bool
    verbose: bool
    json: pathlib.Path | None
    markdown: pathlib.Path | None
    plot: pathlib.Path | None
    notes: tuple[str, ...]


def make_parser() -> argparse.ArgumentParser:
    """The parser, for ``--help`` and for the checks below."""
    parser = argparse.ArgumentParser(
        prog="python -m ffpa_attn.bench",
        description="Measure ffpa attention against PyTorch's SDPA: parity, speed, and the kernel that ran.",
        epilog="'python -m ffpa_attn.bench overhead' measures the host time of a call, 'gates' short problems.",
    )
    add = parser.add_argument
    add("--fwd-backend", choices=FWD_BACKENDS, default="cuda", help="the backend measured as ffpa (default: cuda)")
    add("--cuda-impl", choices=CUDA_IMPLS, default="auto", help="the kernel family asked for (default: auto)")
    add("--no-bwd", action="store_true", help="forward only; this is all the bench does, so it changes nothing")
    add("--tasks", type=_names(TASKS), default=TASKS, help=f"comma list of {', '.join(TASKS)} (default: all)")
    add("--D", type=head_dims, metavar="LIST", help="head dims, comma list")
    add("--N", type=_positive, help="sequence length (decode: length of K and V)")
    add("--B", type=_positive, help="batch")
    add("--H", type=_positive, help="query heads")
    add("--Hkv", type=_positive, help="K/V heads of every case; divides --H (default: H, and H/8 in the gqa cases)")
    add("--dtype", type=_names(DTYPES), default=("bf16",), help="comma list of bf16, fp16 (default: bf16)")
    add("--causal", action="store_true", help="make every case causal but attn-mask")
    add("--peers", action="store_true", help="measure each SDPA kernel and the attention libraries installed beside")
    add("--quick", action="store_true", help="small sizes and few repeats: a check, not a measurement")
    add("--rest", type=float, metavar="S", help="measure bursts of some 25 ms, each after S idle seconds")
    add("--verbose", action="store_true", help="print each case's route, times and errors as it ends")
    add("--json", type=pathlib.Path, metavar="FILE", help="write everything measured as JSON")
    add("--markdown", type=pathlib.Path, metavar="FILE", help="write the table and the environment as Markdown")
    add("--plot", type=pathlib.Path, metavar="FILE", help="write a PNG plot (needs matplotlib)")
    return parser


def parse_options(argv: Sequence[str], cuda: bool) -> Options:
    """Options of a command line. ``cuda``: a CUDA device is there; without one everything is made small.

    A wrong value ends the program with exit code 2 and a message that names it, as argparse does.
    """
    parser = make_parser()
    args = parser.parse_args(argv)
    for name in ("json", "markdown", "plot"):
        path = getattr(args, name)
        if path is not None and not path.resolve().parent.is_dir():
            parser.error(f"--{name}: {path}: the folder {path.resolve().parent} does not exist")
    if args.cuda_impl != "auto" and args.fwd_backend != "cuda":
        parser.error(f"--cuda-impl {args.cuda_impl} needs --fwd-backend cuda, not {args.fwd_backend}")
    if args.rest is not None and not 0 < args.rest < 60:
        parser.error(f"--rest {args.rest}: allowed are seconds above 0 and below 60")
    if args.rest is not None and args.quick:
        parser.error("--rest and --quick are two ways to measure less; give one")
    notes: list[str] = []
    sizes, default_dims = _defaults(cuda, args.quick)
    sizes = _apply(sizes, args)
    head_dims = args.D or default_dims
    fwd_backend = args.fwd_backend
    if not cuda:
        notes.append(
            "no CUDA device: this is the reference implementation on the CPU at small sizes; "
            "its times say nothing about the kernels"
        )
        fwd_backend = "reference"
        sizes = _shrink(sizes, notes)
    elif args.quick:
        notes.append("--quick: small sizes and few repeats; do not quote these times")
    if sizes.kv_heads is not None and sizes.heads % sizes.kv_heads:
        parser.error(f"--Hkv {sizes.kv_heads} must divide the number of query heads, {sizes.heads}")
    return Options(
        fwd_backend=fwd_backend,
        cuda_impl=args.cuda_impl if cuda else "auto",
        tasks=args.tasks,
        head_dims=head_dims,
        dtypes=args.dtype,
        sizes=sizes,
        causal=args.causal,
        quick=args.quick,
        rest=args.rest,
        peers=args.peers,
        verbose=args.verbose,
        json=args.json,
        markdown=args.markdown,
        plot=args.plot,
        notes=tuple(notes),
    )


def _defaults(cuda: bool, quick: bool) -> tuple[Sizes, tuple[int, ...]]:
    if not cuda:
        return CPU_SIZES, CPU_HEAD_DIMS
    return (QUICK_SIZES, QUICK_HEAD_DIMS) if quick else (GPU_SIZES, GPU_HEAD_DIMS)


def _apply(sizes: Sizes, args: argparse.Namespace) -> Sizes:
    """The sizes with what the command line names put in."""
    changes = {"heads": args.H, "kv_heads": args.Hkv, "batch": args.B, "seq_len": args.N}
    changes |= {"decode_batch": args.B, "decode_len": args.N}
    return dataclasses.replace(sizes, **{name: value for name, value in changes.items() if value is not None})


def _shrink(sizes: Sizes, notes: list[str]) -> Sizes:
    """Sizes that a CPU reference can do in seconds; each reduction is noted."""
    limits = {"batch": 2, "heads": 8, "seq_len": 512, "decode_batch": 2, "decode_len": 2048, "kv_heads": 8}
    small = {}
    for name, limit in limits.items():
        value = getattr(sizes, name)
        if value is not None and value > limit:
            notes.append(f"no CUDA device: {name} {value} reduced to {limit}")
            small[name] = limit
    return dataclasses.replace(sizes, **small)


def _positive(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive whole number")
    return value


def lengths(text: str) -> tuple[int, ...]:
    """A comma list of positive whole numbers."""
    values = tuple(dict.fromkeys(_positive(part) for part in text.split(",") if part.strip()))
    if not values:
        raise argparse.ArgumentTypeError("empty; give lengths such as 128,512")
    return values


def head_dims(text: str) -> tuple[int, ...]:
    """A comma list of multiples of 8 up to 1024."""
    values = tuple(dict.fromkeys(_positive(part) for part in text.split(",") if part.strip()))
    for value in values:
        if value % 8 or value > MAX_HEAD_DIM:
            raise argparse.ArgumentTypeError(f"{value} is not a multiple of 8 up to {MAX_HEAD_DIM}")
    if not values:
        raise argparse.ArgumentTypeError("empty; give head dims such as 128,512")
    return values


def _names(allowed: Sequence[str]):  # type: ignore[no-untyped-def]
    def parse(text: str) -> tuple[str, ...]:
        values = tuple(dict.fromkeys(part.strip().lower() for part in text.split(",") if part.strip()))
        unknown = [value for value in values if value not in allowed]
        if unknown or not values:
            wrong = ", ".join(unknown) or "an empty list"
            raise argparse.ArgumentTypeError(f"{wrong} is not known; allowed: {', '.join(allowed)}")
        return values

    return parse
