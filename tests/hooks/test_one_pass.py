"""One pass over Adam's state: every kernel gives what float64 gives, allocates nothing large, and may fail."""

from __future__ import annotations

import logging
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.multiprocessing.reductions import StorageWeakRef

from tests.adapters.pagers import until
from trainer_hooks.sample.one_pass import AdamConstants, OnePass, Piece, Stop, Stopped, native, one_pass, why_unreadable
from trainer_hooks.sample.one_pass.chunked import Chunked, NoKernel

ADAMW = AdamConstants(beta1=0.9, beta2=0.95, eps=1e-8, weight_decay=0.1, step=3)
Make = Callable[[Sequence[Piece]], OnePass]


def _native(pieces: Sequence[Piece]) -> OnePass:
    kernel = native.kernel()
    assert kernel is not None, "the machine that runs these tests has a C compiler: DeepSpeed needs one"
    return native.Native(pieces, kernel)


def _in_small_chunks(pieces: Sequence[Piece]) -> OnePass:
    return Chunked(pieces, chunk=100)


both = pytest.mark.parametrize("make", [Chunked, _native], ids=["chunked", "native"])
every = pytest.mark.parametrize("make", [Chunked, _in_small_chunks, _native], ids=["chunked", "small chunks", "native"])


def _pieces(sizes: Sequence[int], *flat: Tensor, offset: int = 0) -> list[Piece]:
    """Views into flat tensors, one behind the other, from an element that no vector load is aligned with."""
    parts = [torch.split(tensor[offset : offset + sum(sizes)], list(sizes)) for tensor in flat]
    return [
        Piece(exp_avg_sq=of[0], exp_avg=of[1] if len(of) > 1 else None, parameter=of[2] if len(of) > 2 else None)
        for of in zip(*parts, strict=True)
    ]


def _exact(piece: Piece) -> tuple[float, float]:
    """By numpy, in float64."""
    v = piece.exp_avg_sq.double().numpy()
    if not len(v):
        return 0.0, 0.0
    if np.isnan(v).any() or (v < 0).any():
        return math.nan, math.nan
    return float(np.sqrt(v).sum()), float(v.max())


def _same(given: Tensor, exact: Sequence[Sequence[float]], rtol: float = 1e-6) -> None:
    np.testing.assert_allclose(given.numpy(), np.array(exact, dtype=np.float64).reshape(-1, len(given)).T, rtol=rtol)


VALUES = st.one_of(
    st.floats(0, 2**127, width=32),
    st.floats(0, 2**-20, width=32),
    st.sampled_from([0.0, 1e-45, 1e-39, 1.0, 3.4e38]),
)
ILL = st.sampled_from([math.nan, -math.nan, math.inf, -1e-9, -math.inf, -0.0])


@every
@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.integers(0, 400), max_size=12),
    offset=st.integers(0, 5),
    values=st.lists(VALUES, min_size=1, max_size=50),
    ill=st.lists(st.tuples(st.integers(0, 4000), ILL), max_size=3),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
)
def test_every_piece_has_the_sum_of_roots_and_the_maximum_that_float64_gives(
    make: Make,
    sizes: list[int],
    offset: int,
    values: list[float],
    ill: list[tuple[int, float]],
    dtype: torch.dtype,
) -> None:
    n = sum(sizes) + offset
    v = torch.tensor((values * (n // len(values) + 1))[:n], dtype=torch.float32).to(dtype)
    for place, value in ill:
        if n:
            v[place % n] = value
    pieces = _pieces(sizes, v, offset=offset)
    _same(make(pieces).variance(), [_exact(piece) for piece in pieces])


@every
@pytest.mark.parametrize("n", [0, 1, 15, 16, 17, 127, 128, 129, 65_535, 65_536, 65_537, 1_000_003])
@pytest.mark.parametrize("offset", [0, 1])
def test_at_every_boundary_of_a_block_or_a_tile_no_element_is_lost_or_added(make: Make, n: int, offset: int) -> None:
    v = torch.ones(offset + n + 200)
    v[offset + n :] = math.nan  # what lies behind is not ours
    assert make(_pieces([n], v, offset=offset)).variance().tolist() == [[n], [float(n > 0)]]


@both
@pytest.mark.parametrize("value", [math.nan, -math.nan, -1e-9])
def test_one_bad_v_among_millions_makes_its_own_piece_nan_and_no_other(make: Make, value: float) -> None:
    for place in (0, 1_000_000, 1_999_999):
        v = torch.rand(4_000_000)
        v[2_000_000 + place] = value
        told = make(_pieces([2_000_000, 2_000_000], v)).variance()
        assert told[:, 1].isnan().all()
        assert told[:, 0].isfinite().all()


@every
def test_an_infinite_v_is_infinite_and_not_nan(make: Make) -> None:
    v = torch.rand(300_000)
    v[70_001] = math.inf
    assert make(_pieces([300_000], v)).variance().tolist() == [[math.inf], [math.inf]]


@every
@pytest.mark.parametrize("value", [1.4e-45, 1e-42, 1e-39, 1.2e-38, 3.4e38])
def test_the_roots_of_the_smallest_and_the_largest_are_as_near_as_any(make: Make, value: float) -> None:
    pieces = _pieces([1, 1000], torch.full((1001,), value))
    _same(make(pieces).variance(), [_exact(piece) for piece in pieces])


@every
def test_no_piece_at_all_is_an_answer_without_columns(make: Make) -> None:
    assert make([]).variance().shape == (2, 0)
    assert make([]).moments([]).shape == (5, 0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_a_dtype_that_the_fast_kernel_does_not_take_is_read_all_the_same(dtype: torch.dtype) -> None:
    pieces = _pieces([5, 99_995], torch.rand(100_001).to(dtype), offset=1)
    chosen = one_pass(pieces)
    assert chosen.name == "chunked"
    _same(chosen.variance(), [_exact(piece) for piece in pieces])


def test_one_piece_that_the_fast_kernel_does_not_take_has_all_of_them_read_by_torch() -> None:
    pieces = [Piece(exp_avg_sq=torch.ones(10)), Piece(exp_avg_sq=torch.ones(20, dtype=torch.float64)[::2])]
    assert one_pass(pieces).variance().tolist() == [[10, 10], [1, 1]]


def _moments(piece: Piece, of: AdamConstants) -> list[float]:
    """By numpy, in float64, from Adam's formula."""
    if not piece.exp_avg_sq.numel():
        return [0.0] * 5
    assert piece.exp_avg is not None
    assert piece.parameter is not None
    v, m, p = (t.double().numpy() for t in (piece.exp_avg_sq, piece.exp_avg, piece.parameter))
    m_hat = m / (1 - of.beta1**of.step) if of.bias_correction else m
    v_hat = v / (1 - of.beta2**of.step) if of.bias_correction else v
    update = m_hat / (np.sqrt(v_hat) + of.eps) + (of.weight_decay * p if of.decoupled else 0)
    return [*_exact(piece), float((m**2).sum()), float((update**2).sum()), float((p**2).sum())]


@every
@pytest.mark.parametrize(
    "of",
    [
        ADAMW,
        AdamConstants(beta1=0.9, beta2=0.999, eps=1e-8, step=1),
        AdamConstants(beta1=0.9, beta2=0.999, eps=1e-8, weight_decay=0.1, step=100_000, decoupled=False),
        AdamConstants(beta1=0.8, beta2=0.99, eps=1e-6, weight_decay=0.1, step=7, bias_correction=False),
        AdamConstants(beta1=0.9, beta2=0.95, eps=0.0, step=2),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_moments_are_those_of_adams_formula(make: Make, of: AdamConstants, dtype: torch.dtype) -> None:
    sizes = (0, 1, 17, 128, 131, 65_536, 70_001)
    numbers = torch.Generator().manual_seed(1)
    v = torch.exp(6 * torch.randn(1 + sum(sizes), generator=numbers) - 15)
    m, p = torch.randn(len(v), generator=numbers) * v.sqrt(), torch.randn(len(v), generator=numbers)
    pieces = _pieces(sizes, *(t.to(dtype) for t in (v, m, p)), offset=1)
    _same(make(pieces).moments([of]), [_moments(piece, of) for piece in pieces])


@every
def test_each_group_has_its_own_constants(make: Make) -> None:
    v, m, p = torch.rand(3000), torch.randn(3000), torch.randn(3000)
    constants = [ADAMW, AdamConstants(beta1=0.5, beta2=0.6, eps=1e-3, step=1)]
    pieces = [
        Piece(exp_avg_sq=a, exp_avg=b, parameter=c, group=number % 2)
        for number, (a, b, c) in enumerate(zip(*(torch.split(t, 1000) for t in (v, m, p)), strict=True))
    ]
    _same(make(pieces).moments(constants), [_moments(piece, constants[piece.group]) for piece in pieces])


@every
def test_what_a_piece_does_not_hold_is_nan_and_nothing_else_is(make: Make) -> None:
    v, m, p = torch.rand(200), torch.randn(200), torch.randn(200)
    undecayed = AdamConstants(beta1=0.9, beta2=0.95, eps=1e-8, step=3)
    pieces = [
        Piece(exp_avg_sq=v),
        Piece(exp_avg_sq=v, parameter=p),
        Piece(exp_avg_sq=v, exp_avg=m),
        Piece(exp_avg_sq=v, exp_avg=m, group=1),
        Piece(exp_avg_sq=v, exp_avg=m, parameter=p, group=2),
    ]
    amsgrad = AdamConstants(beta1=0.9, beta2=0.95, eps=1e-8, step=3, amsgrad=True)
    told = make(pieces).moments([ADAMW, undecayed, amsgrad])
    assert told[:2].isfinite().all()
    assert told[2:].isnan().int().tolist() == [
        [1, 1, 0, 0, 0],  # momentum
        [1, 1, 1, 0, 1],  # update: the decay needs the parameter, AMSGrad what nobody reads
        [1, 0, 1, 1, 0],  # parameter
    ]


@both
def test_squares_of_tiny_and_of_huge_moments_neither_vanish_nor_overflow(make: Make) -> None:
    m = torch.full((1000,), 1e-30)
    m[500:] = 1e25
    halves = _pieces([500, 500], torch.ones(1000), m, torch.ones(1000))
    np.testing.assert_allclose(make(halves).moments([ADAMW])[2], [500 * 1e-60, 500 * 1e50], rtol=1e-6)


@both
def test_a_group_without_constants_is_an_error_and_no_number(make: Make) -> None:
    v = torch.rand(100)
    with pytest.raises(IndexError):
        make([Piece(exp_avg_sq=v, exp_avg=v, parameter=v, group=1)]).moments([ADAMW])


@pytest.mark.parametrize("wrong", [torch.ones(9), torch.ones(11), torch.ones(2, 5)])
def test_tensors_of_different_lengths_are_no_piece(wrong: Tensor) -> None:
    with pytest.raises(ValueError, match="of one length and one dimension"):
        Piece(exp_avg_sq=torch.ones(10), exp_avg=wrong)


@both
@pytest.mark.parametrize("maximize", [False, True])
@pytest.mark.parametrize("which", [torch.optim.Adam, torch.optim.AdamW])
def test_the_update_is_what_torchs_optimizer_really_changes(
    make: Make, which: type[torch.optim.Adam], maximize: bool
) -> None:
    numbers = torch.Generator().manual_seed(2)
    weight = torch.nn.Parameter(torch.randn(10_000, generator=numbers))
    optimizer = which([weight], lr=0.1, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1, maximize=maximize)
    for step in range(1, 6):
        weight.grad = torch.randn(10_000, generator=numbers) * 1e-3
        before = weight.detach().clone()
        optimizer.step()
        changed = ((before - weight.detach()).double() / 0.1).square().sum().item()
        state = optimizer.state[weight]
        of = AdamConstants(
            beta1=0.9, beta2=0.95, eps=1e-8, weight_decay=0.1, step=step, decoupled=which is torch.optim.AdamW
        )
        piece = Piece(exp_avg_sq=state["exp_avg_sq"], exp_avg=state["exp_avg"], parameter=before)
        assert make([piece]).moments([of])[3].item() == pytest.approx(changed, rel=1e-5)


def test_an_update_that_was_never_made_has_no_constants() -> None:
    with pytest.raises(ValueError, match="step of at least 1"):
        AdamConstants(beta1=0.9, beta2=0.95, eps=1e-8, step=0)


# How large


def _large_sums_keep_a_millionth(make: Make, n: int) -> None:
    constant = torch.full((n,), 1.7e-7)
    root = math.sqrt(constant[0].item())
    told = make([Piece(exp_avg_sq=constant)]).variance()
    assert told[0].item() == pytest.approx(n * root, rel=1e-6)
    assert told[1].item() == constant[0].item()
    heavy = constant.log_normal_(-20, 4, generator=torch.Generator().manual_seed(3))
    exact = math.fsum(part.double().sqrt().sum().item() for part in heavy.split(1 << 22))
    told = make([Piece(exp_avg_sq=heavy)]).variance()
    assert told[0].item() == pytest.approx(exact, rel=1e-6)
    assert told[1].item() == max(part.max().item() for part in heavy.split(1 << 22))


@pytest.mark.full
@both
def test_sums_over_a_hundred_million_elements_keep_a_millionth(make: Make) -> None:
    _large_sums_keep_a_millionth(make, 100_000_000)


@pytest.mark.soak
@both
def test_sums_over_a_thousand_million_elements_keep_a_millionth(make: Make) -> None:
    _large_sums_keep_a_millionth(make, 1_000_000_000)


def _largest_allocation(of: Callable[[], object]) -> int:
    """Bytes that torch's allocator was asked for at once."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        of()
    return max((event.self_cpu_memory_usage for event in profile.events() or []), default=0)


@both
def test_nothing_of_a_parameters_size_is_allocated(make: Make) -> None:
    n = 20_000_000
    state = [torch.rand(n) for _ in range(3)]
    assert _largest_allocation(lambda: state[0].sqrt().sum()) >= 4 * n  # what would be seen
    kernel = make([Piece(exp_avg_sq=state[0], exp_avg=state[1], parameter=state[2])])
    assert _largest_allocation(kernel.variance) < n / 4
    assert _largest_allocation(lambda: kernel.moments([ADAMW])) < n / 4


# What it leaves alone, and what it holds on to


def test_the_answer_does_not_depend_on_the_number_of_threads() -> None:
    pieces = _pieces([3_000_000, 1, 2_000_000], torch.rand(5_000_001))
    threads = torch.get_num_threads()
    answers = []
    try:
        for number in (1, 2, 3, 7):
            torch.set_num_threads(number)
            answers.append(_native(pieces).variance())
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(answer, answers[0]) for answer in answers)


@both
def test_a_state_that_is_replaced_is_freed_at_once_and_read_no_more(make: Make) -> None:
    """As a load in the process does: the old moments must not lie beside the new ones in the next forward."""
    v, m = torch.full((1_000_000,), 4.0), torch.ones(1_000_000)
    kept = [StorageWeakRef(t.untyped_storage()) for t in (v, m)]  # type: ignore[no-untyped-call]
    kernel = make([Piece(exp_avg_sq=v[:1000], exp_avg=m[:1000])])
    assert kernel.variance().tolist() == [[2000], [4]]
    m.data = torch.empty(0)  # as an engine does that moves its state elsewhere
    del m
    assert [reference.expired() for reference in kept] == [False, True]
    assert kernel.variance().tolist() == [[2000], [4]]
    with pytest.raises(RuntimeError, match="does not lie where it lay"):
        kernel.moments([ADAMW])
    del v
    assert kept[0].expired()
    with pytest.raises(RuntimeError, match="does not lie where it lay"):
        kernel.variance()


@both
def test_a_pass_that_is_asked_to_stop_gives_nothing(make: Make) -> None:
    v = torch.ones(3_000_000)
    kernel, stop = make([Piece(exp_avg_sq=v)]), Stop()
    assert kernel.variance(stop=stop).tolist() == [[3_000_000], [1]]
    stop.set()
    with pytest.raises(Stopped):
        kernel.variance(stop=stop)


def test_memory_is_read_where_a_kernel_may_read_it() -> None:
    grown = torch.ones(4)
    grown.untyped_storage().resize_(0)  # FSDP
    cut = torch.ones(400)
    cut.untyped_storage().resize_(40)
    with torch.inference_mode():
        inferred = torch.ones(3)
    with FakeTensorMode():
        fake = torch.ones(3)
    seen_by_functorch: list[str | None] = []
    torch.func.grad(lambda x: (seen_by_functorch.append(why_unreadable(x)), x.sum())[1])(torch.ones(3))
    torch.vmap(lambda x: (seen_by_functorch.append(why_unreadable(x)), x.sum())[1])(torch.ones(2, 3))
    unreadable = [
        *(fake, grown, cut, torch.ones(3, device="meta"), torch.eye(3).to_sparse(), torch.ones(3)._neg_view()),
        *(torch._to_functional_tensor(torch.ones(3)), nn.parameter.UninitializedParameter(), "no tensor"),
        torch.ones(3, dtype=torch.complex64).conj(),
    ]
    assert all(why_unreadable(tensor) for tensor in unreadable), [why_unreadable(tensor) for tensor in unreadable]
    assert all(seen_by_functorch)
    weight = nn.Parameter(torch.ones(6))
    for tensor in (weight, weight[2:], weight.view(2, 3).t(), inferred, torch.ones(0), torch.ones(1)):
        assert why_unreadable(tensor) is None
    assert one_pass([Piece(exp_avg_sq=weight.detach()[2:])]).variance().tolist() == [[4], [1]]
    assert one_pass([Piece(exp_avg_sq=inferred)]).variance().tolist() == [[3], [1]]


def test_a_storage_that_was_cut_short_under_its_view_is_an_error_and_no_crash() -> None:
    v = torch.ones(1_000_000)
    kernel = _native([Piece(exp_avg_sq=v)])
    v.untyped_storage().resize_(4096)
    with pytest.raises(RuntimeError, match="does not lie where it lay"):
        kernel.variance()


def test_a_state_whose_memory_was_taken_away_is_an_error_and_no_crash() -> None:
    v = torch.ones(1_000_000)
    kernel = _native([Piece(exp_avg_sq=v)])
    v.untyped_storage().resize_(0)
    with pytest.raises(RuntimeError, match="does not lie where it lay"):
        kernel.variance()


@pytest.mark.full
def test_choosing_a_kernel_moves_no_random_number_of_the_training(tmp_path: Path) -> None:
    program = (
        "import torch; from trainer_hooks.sample.one_pass import Piece, one_pass; torch.manual_seed(0);"
        "state = torch.ones(1000); one_pass([Piece(exp_avg_sq=state)]).variance(); chosen = torch.rand(3);"
        "torch.manual_seed(0); assert torch.equal(chosen, torch.rand(3))"
    )
    ran = _in_a_process(program, tmp_path, os.environ["PATH"])
    assert ran.returncode == 0, ran.stderr


# Fallbacks

TELL = """
import logging
logging.basicConfig(level=logging.INFO)
import torch
from trainer_hooks.sample.one_pass import Piece, one_pass
state = torch.full((100,), 4.0)
for _ in range(3):
    chosen = one_pass([Piece(exp_avg_sq=state)])
print(chosen.name, chosen.variance().tolist())
"""


def _in_a_process(program: str, cwd: Path, path: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program],
        cwd=cwd,
        env={**os.environ, "PATH": path, "PYTHONPATH": os.pathsep.join(sys.path), **environment},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


def _compiler(folder: Path, script: str) -> str:
    """A PATH on which cc is this script."""
    folder.mkdir(exist_ok=True)
    (folder / "cc").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "cc").chmod(0o755)
    return str(folder)


@pytest.mark.full
def test_with_a_compiler_the_kernel_is_the_native_one(tmp_path: Path) -> None:
    ran = _in_a_process(TELL, tmp_path, os.environ["PATH"])
    assert ran.stdout == "native [[200.0], [4.0]]\n", ran.stderr


@pytest.mark.full
@pytest.mark.parametrize(
    ("script", "reason"),
    [
        (None, "there is no C compiler"),
        ("echo 'no space left on device' >&2; exit 3", "ended with 3: no space left on device"),
        ("for last; do :; done; : > $last", "file too short"),
        ("for last; do :; done; /bin/rm -rf ${last%/*}", "cannot open shared object file"),
    ],
    ids=["no compiler", "a compiler that fails", "nothing that can be loaded", "a folder that is swept away"],
)
def test_without_a_kernel_torch_does_it_and_the_log_says_so_once(
    tmp_path: Path, script: str | None, reason: str
) -> None:
    path = _compiler(tmp_path / "bin", script) if script else str(tmp_path)
    ran = _in_a_process(TELL, tmp_path, path)
    assert ran.stdout == "chunked [[200.0], [4.0]]\n", ran.stderr
    assert ran.stderr.count("WARNING:trainer_hooks.sample.one_pass.native:") == 1
    assert reason in ran.stderr


def test_a_compiler_that_hangs_is_ended_with_all_that_it_has_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pid = tmp_path / "pid"
    script = f"/bin/sleep 600 & echo $! > {pid}.new; /bin/mv {pid}.new {pid}; wait"
    monkeypatch.setenv("PATH", _compiler(tmp_path / "bin", script))
    for time_limit_s in (0.5, 5.0, 60.0):  # until it has come so far as to start something
        with pytest.raises(NoKernel, match=f"did not end within {time_limit_s:g} s"):
            native.compiled(native.source(), time_limit_s=time_limit_s)
        if pid.exists():
            break
    started = int(pid.read_text())
    until(lambda: not psutil.pid_exists(started) or psutil.Process(started).status() == psutil.STATUS_ZOMBIE)


def test_what_was_compiled_is_gone_when_it_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    native.checked(native.compiled(native.source()))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("if (out[piece] != out[piece])", "if (0)"),
        ("bits > tops", "bits < tops"),
        ("parts[1] > *largest", "parts[1] < *largest"),
        ("? (int)(t->n - at) : BLOCK", "? (int)(t->n - at) - 1 : BLOCK"),
        ("if (out[0] != out[0]) do_tile", "if (0) do_tile"),
        ("c.momentum_scale / divisor", "c.root_scale / divisor"),
        ("+ c.eps", ""),
        ("update += c.decay * x", "(void)x"),
        ("memset(room, 0, BLOCK * sizeof *room);", ""),
        ("t->m ? all_of(&mm) : nan", "all_of(&mm)"),
        ("(uint32_t)half[i] << 16", "(uint32_t)half[i]"),
        ("r + r * 0.5f * (1.0f - r * y)", "r"),
        ("return sum;", "return sum * 1.00001;"),
    ],
)
def test_a_kernel_that_is_wrong_anywhere_is_found_out_before_it_is_used(right: str, wrong: str) -> None:
    source = native.source()
    assert right in source
    if right.startswith(("r + r", "if (out[0]")):
        _needs_avx512()
    with pytest.raises(NoKernel, match="wrong answer"):
        native.checked(native.compiled(source.replace(right, wrong)))


def test_a_processor_without_avx512_has_a_kernel_that_is_right_too() -> None:
    source = native.source()
    assert "defined(__AVX512F__)" in source
    native.checked(native.compiled(source.replace("defined(__AVX512F__)", "0")))


@pytest.mark.parametrize("flush", [True, False])
def test_a_training_that_flushes_denormals_has_the_kernel_too(flush: bool) -> None:
    torch.set_flush_denormal(flush)
    try:
        native.checked(native.compiled(native.source()))
    finally:
        torch.set_flush_denormal(False)


def _needs_avx512() -> None:
    if "avx512f" not in Path("/proc/cpuinfo").read_text():
        pytest.skip("this processor has no AVX-512: the line is not compiled")


# On CUDA


def test_the_triton_kernels_are_right_in_tritons_interpreter(tmp_path: Path) -> None:
    if find_spec("triton") is None:
        pytest.skip("Triton comes with torch's CUDA builds; this is a CPU build")
    program = """
import torch
from triton.runtime import interpreter
patch = interpreter._patch_lang_tensor
def patched(tensor, scope):  # Triton 3.6 makes a number of an array of one dimension: NumPy 2.4 and later refuse that
    patch(tensor, scope)
    scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())
interpreter._patch_lang_tensor = patched
from trainer_hooks.sample.one_pass.chunked import check
from trainer_hooks.sample.one_pass.triton_pass import TritonPass, _kernels
for dtype in (torch.float32, torch.bfloat16, torch.float16):
    check(lambda pieces: TritonPass(pieces, _kernels()), torch.device("cpu"), dtype)
"""
    ran = _in_a_process(program, tmp_path, os.environ["PATH"], TRITON_INTERPRET="1")
    assert ran.returncode == 0, ran.stderr


def test_the_triton_kernels_compile_for_a_gpu_that_is_not_there_with_loads_of_16_bytes() -> None:
    triton = pytest.importorskip("triton", reason="Triton comes with torch's CUDA builds; this is a CPU build")
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from trainer_hooks.sample.one_pass import triton_kernel

    kinds = {"table": "*i64", "parts": "*fp64", "first": "i32", "tiles": "i32"}
    kinds |= dict.fromkeys(("momentum_scale", "root_scale", "eps", "decay"), "fp32")
    float32 = triton_kernel.TYPES[torch.float32]
    constants = {"aligned": True, "size": triton_kernel.TILE, "block": triton_kernel.BLOCK}
    for v_type in triton_kernel.TYPES.values():
        for other in (None, float32):
            given = {"v_type": v_type, "m_type": other, "p_type": other, **constants}
            signature = kinds | dict.fromkeys(given, "constexpr")
            source = ASTSource(fn=triton_kernel.per_tile, signature=signature, constexprs=given)
            assembled = triton.compile(source, target=GPUTarget("cuda", 90, 32)).asm["ptx"]
            assert "ld.global.v4.b32" in assembled, (v_type, other)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_on_a_gpu_the_host_waits_for_nothing(dtype: torch.dtype) -> None:
    sizes = (0, 1, 16_384, 100_003, 3_000_000)
    state = [torch.rand(1 + sum(sizes)).to(dtype) for _ in range(3)]
    exact = Chunked(_pieces(sizes, *(t.double() for t in state), offset=1)).moments([ADAMW])
    pieces = _pieces(sizes, *(t.cuda() for t in state), offset=1)
    fast = one_pass(pieces)
    assert fast.name == "triton"
    for kernel in (fast, Chunked(pieces)):
        kernel.moments([ADAMW])
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
        try:
            variance, moments = kernel.variance(), kernel.moments([ADAMW])
        finally:
            torch.cuda.set_sync_debug_mode("default")
        torch.testing.assert_close(variance.cpu(), exact[:2], rtol=1e-6, atol=0)
        torch.testing.assert_close(moments.cpu(), exact, rtol=1e-6, atol=0)


def test_pieces_on_the_cpu_are_not_for_triton(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    assert one_pass([Piece(exp_avg_sq=torch.ones(1))]).name != "triton"
    assert one_pass([]).name != "triton"
