"""The command line: defaults, the documented command, and messages on wrong use."""

import pathlib

import pytest

from ffpa_attn.bench.cases import CPU_SIZES, GPU_SIZES, TASKS
from ffpa_attn.bench.options import parse_options


def test_documented_command_parses():
    options = parse_options(["--fwd-backend", "cuda", "--cuda-impl", "fp8", "--no-bwd", "--D", "128,512"], cuda=True)
    assert (options.fwd_backend, options.cuda_impl, options.head_dims) == ("cuda", "fp8", (128, 512))


def test_defaults_cover_every_task():
    options = parse_options([], cuda=True)
    assert options.tasks == TASKS and options.sizes == GPU_SIZES and options.notes == ()


def test_sizes_given_reach_every_task():
    sizes = parse_options(["--N", "4096", "--B", "2", "--H", "16", "--Hkv", "4"], cuda=True).sizes
    assert (sizes.seq_len, sizes.decode_len, sizes.batch, sizes.decode_batch) == (4096, 4096, 2, 2)
    assert (sizes.heads, sizes.kv_heads) == (16, 4)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--D", "100"], "argument --D: 100 is not a multiple of 8 up to 1024"),
        (["--D", "1032"], "argument --D: 1032 is not a multiple of 8 up to 1024"),
        (["--D", ","], "argument --D: empty"),
        (["--N", "0"], "argument --N: '0' is not a positive whole number"),
        (["--B", "two"], "argument --B: 'two' is not a positive whole number"),
        (["--dtype", "fp32"], "argument --dtype: fp32 is not known; allowed: bf16, fp16"),
        (["--tasks", "self,training"], "argument --tasks: training is not known; allowed: self, cross"),
        (["--H", "8", "--Hkv", "3"], "--Hkv 3 must divide the number of query heads, 8"),
        (["--fwd-backend", "sdpa", "--cuda-impl", "tma"], "--cuda-impl tma needs --fwd-backend cuda, not sdpa"),
        (["--rest", "0"], "--rest 0.0: allowed are seconds above 0 and below 60"),
        (["--rest", "1", "--quick"], "--rest and --quick are two ways to measure less"),
        (["--fwd-backend", "triton"], "invalid choice: 'triton'"),
        (["--json", "missing-folder/out.json"], "--json: missing-folder/out.json: the folder"),
    ],
)
def test_wrong_use_names_option_value_and_what_is_allowed(argv, message, capsys):
    with pytest.raises(SystemExit) as exit_:
        parse_options(argv, cuda=True)
    assert exit_.value.code == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_without_a_gpu_the_reference_runs_and_this_is_said():
    options = parse_options(["--fwd-backend", "cuda", "--cuda-impl", "tma"], cuda=False)
    assert (options.fwd_backend, options.cuda_impl, options.sizes) == ("reference", "auto", CPU_SIZES)
    assert "no CUDA device" in options.notes[0] and "reference implementation" in options.notes[0]


def test_without_a_gpu_large_sizes_are_reduced_and_this_is_said():
    options = parse_options(["--N", "8192", "--H", "32", "--Hkv", "32"], cuda=False)
    assert options.sizes.seq_len == 512 and options.sizes.heads == options.sizes.kv_heads == 8
    assert "no CUDA device: seq_len 8192 reduced to 512" in options.notes


def test_files_are_paths(tmp_path):
    options = parse_options(["--json", str(tmp_path / "a.json"), "--plot", "b.png"], cuda=True)
    assert options.json == tmp_path / "a.json" and options.plot == pathlib.Path("b.png")
