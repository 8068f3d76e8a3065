"""What is difficult, by each metric, against its formula written out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sentinel.vocabulary.errors import ConfigError, DataError
from tests.hooks.data_made import PAD, job, padded_file, token_file
from tests.support.rarities import counts, rarities
from trainer_hooks.data.metrics import METRICS, named
from trainer_hooks.data.shards import open_rows


@pytest.mark.parametrize("make", [token_file, padded_file])
def test_vocabulary_rarity_is_the_papers(tmp_path: Path, make: type) -> None:
    rows = job(make(tmp_path), tmp_path).rows()
    metric = named("voc", width=rows.width, pad=rows.pad, counts=counts(rows))
    assert metric.values(rows.tokens) == pytest.approx(rarities(rows), rel=1e-6)


def test_the_effective_length_counts_what_is_not_padding(tmp_path: Path) -> None:
    rows = job(padded_file(tmp_path), tmp_path).rows()
    lengths = [sum(token != PAD for token in row) for row in rows.tokens.tolist()]
    assert named("seqreo", width=rows.width, pad=PAD).values(rows.tokens).tolist() == lengths
    assert len(set(lengths)) > 10


def test_length_and_rarity_together_order_by_length_and_then_by_rarity(tmp_path: Path) -> None:
    rows = job(padded_file(tmp_path), tmp_path).rows()
    both = named("seqreo_voc", width=rows.width, pad=PAD, counts=counts(rows)).values(rows.tokens)
    lengths = np.count_nonzero(rows.tokens != PAD, axis=1).tolist()
    keys = list(zip(lengths, rarities(rows), strict=True))
    assert np.argsort(both, kind="stable").tolist() == sorted(range(len(keys)), key=keys.__getitem__)


def test_packed_samples_all_have_the_length_of_their_rows(tmp_path: Path) -> None:
    rows = job(token_file(tmp_path), tmp_path).rows()
    assert set(named("seqtru", width=rows.width, pad=None).values(rows.tokens)) == {21}


def test_the_papers_combinations_with_a_length_are_indexed_by_vocabulary_alone() -> None:
    assert METRICS["seqtru_voc"] == METRICS["seqres_voc"] == "voc"
    assert all(METRICS[name] == name for name in ("seqtru", "seqres", "seqreo", "voc", "seqreo_voc"))


def test_rows_are_the_trainers_samples_and_none_of_validations(tmp_path: Path) -> None:
    from trainer_hooks.gpt.data import load_corpus

    path = token_file(tmp_path)
    corpus = load_corpus([path], seqlen=20, vocabulary=None, validation_share=0.02)
    rows = open_rows([path], seqlen=20, validation_share=0.02)
    assert np.array_equal(rows.tokens, corpus.training(np.arange(corpus.training_samples)))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("voca", "there is no metric 'voca'; there are seqtru"),
        ("seqreo", "--pad"),
        ("no.such.module:f", "no.such.module:f"),
        ("math:pi", "no function"),
    ],
)
def test_a_metric_that_can_not_be_is_refused_in_words(name: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        named(name, width=8, pad=None)


def test_a_metric_of_the_users_gives_one_number_for_each_row() -> None:
    rows = np.arange(12).reshape(3, 4)
    assert named("tests.hooks.data_metric:last", width=4, pad=None).values(rows).tolist() == [3, 7, 11]
    with pytest.raises(DataError, match=r"gave int64 \(3, 4\) for 3 rows"):
        named("tests.hooks.data_metric:identity", width=4, pad=None).values(rows)


@pytest.mark.parametrize(
    ("rows", "said"), [(np.zeros((2, 2)), "whole numbers"), (np.zeros(4, dtype=np.int32), "rows"), (b"PK", "not a")]
)
def test_padded_data_that_is_none_is_refused(tmp_path: Path, rows: object, said: str) -> None:
    path = tmp_path / "rows.npy"
    if isinstance(rows, bytes):
        path.write_bytes(rows)
    else:
        np.save(path, np.asarray(rows))
    with pytest.raises(DataError, match=said):
        open_rows([path], seqlen=None, pad=0)
