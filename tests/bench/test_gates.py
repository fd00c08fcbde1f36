"""``bench gates``: the problems that it measures, and wrong use."""

import pytest
import torch

from ffpa_attn.bench import cli, gates


def test_short_queries_short_keys_and_both():
    args = gates.make_parser().parse_args(["--D", "64", "--Nq", "8,64", "--Nkv", "64,128", "--long", "4096"])
    sizes = [(case.q_len, case.kv_len) for case in gates.short_cases(args)]
    assert sizes == [(8, 4096), (64, 4096), (4096, 64), (4096, 128), (64, 64)]


def test_kv_heads_reach_every_case():
    args = gates.make_parser().parse_args(["--H", "8", "--Hkv", "2"])
    assert {(case.heads, case.kv_heads) for case in gates.short_cases(args)} == {(8, 2)}


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--Nq", ","], "argument --Nq: empty; give lengths"),
        (["--Nkv", "8,x"], "argument --Nkv: 'x' is not a positive whole number"),
        (["--decode-below", "0"], "--decode-below 0: must be at least 1"),
        (["--H", "8", "--Hkv", "3"], "--Hkv 3 must divide the number of query heads, 8"),
    ],
)
def test_wrong_use_names_the_argument(argv, message, capsys):
    with pytest.raises(SystemExit) as caught:
        cli.main(["gates", *argv])
    assert caught.value.code == 2 and message in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="checks the message on a machine without a GPU")
def test_without_a_gpu_it_says_so(capsys):
    assert cli.main(["gates"]) == 1
    assert "needs a CUDA device" in capsys.readouterr().err
