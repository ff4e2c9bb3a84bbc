"""What is cited: that every reference is whole, that every rule is due somewhere, and the classics."""

import re

import pytest

import memdsl as md
from memdsl.cite import cite, references, Rule, RULES

from .helpers import COMPOSITES, FEATURES, LISTS


BIBTEX = re.compile(
    r"@(article|inproceedings)\{(?P<key>[a-z]+\d{4}[a-z0-9]+),\n"
    r"  title = \{.+\},\n"
    r"  author = \{.+\},\n"
    r"(  (journal|booktitle) = \{.+\},\n)"
    r"((  volume = \{\d+\},\n)(  number = \{\d+\},\n)?(  pages = \{\d+--\d+\},\n))?"
    r"  year = \{\d{4}\},\n"
    r"\}"
)


def keys(spec: md.AbstractMemory) -> set[str]:
    return set(re.findall(r"^@\w+\{(\w+),$", cite(spec), flags=re.MULTILINE))


@pytest.mark.parametrize("key", references())
def test_every_reference_is_whole(key: str):
    entry = BIBTEX.fullmatch(references()[key])
    assert entry and entry["key"] == key
    assert references()[key].count("{") == references()[key].count("}")


def test_every_reference_is_cited_and_every_citation_known():
    assert {reference for rule in RULES for reference in rule.references} == set(references())


CLASSICS = {
    "linear_attention": {"katharopoulos2020transformers"},
    "retnet": {"katharopoulos2020transformers", "sun2023retentive"},
    "mamba2": {"katharopoulos2020transformers", "dao2024mamba2"},
    "gla": {"katharopoulos2020transformers", "yang2024gla"},
    "rwkv6": {"katharopoulos2020transformers", "yang2024gla", "peng2024rwkv6"},
    "delta_net": {"schlag2021linear", "yang2024parallelizing"},
    "gated_delta_net": {"schlag2021linear", "yang2024parallelizing", "yang2024gated"},
    "kimi_delta_attention": {"schlag2021linear", "yang2024parallelizing", "kimi2025linear"},
    "oja_net": {"schlag2021linear", "yang2024parallelizing", "irie2022neural"},
    "mesa_net": {"vonoswald2025mesanet"},
    "titans": {"behrouz2025titans", "sun2024ttt"},
    "ttt_linear": {"sun2024ttt"},
    "ttt_mlp": {"sun2024ttt"},
    "titans_mlp": {"behrouz2025titans", "sun2024ttt"},
    "omega_net": {"behrouz2025atlas"},
    "atlas": {"behrouz2025titans", "behrouz2025atlas", "jordan2024muon"},
    "moneta": {"behrouz2025miras"},
    "moneta_miras": {"behrouz2025miras"},
    "yaad": {"behrouz2025miras"},
    "memora": {"behrouz2025miras"},
    "elastic_net": {"behrouz2025miras"},
    "value_shift": {"behrouz2025miras"},
    "softmax": {"vaswani2017attention"},
    "sliding_window": {"vaswani2017attention", "beltagy2020longformer"},
    "forgetting_attention": {"vaswani2017attention", "lin2025forgetting"},
    "local_linear_attention": {"zuo2025local"},
    "klms": {"liu2008klms"},
    "qklms": {"liu2008klms", "chen2012qklms", "schlegel2026retrieval"},
    "norma": {"liu2008klms", "kivinen2004norma"},
    "knlms": {"liu2008klms", "richard2009online"},
    "sliding_window_ridge": {"engel2004krls", "vanvaerenbergh2006sliding"},
}


@pytest.mark.parametrize("name", CLASSICS)
def test_the_classics_cite_their_papers(name: str):
    assert keys(md.zoo.catalogue()[name]()) == CLASSICS[name]


def test_what_is_inside_is_cited_once():
    hybrid = md.zoo.softmax() + 0.5 * md.zoo.sliding_window().replace(capacity=md.Window(4, 1))
    assert cite(hybrid).count("vaswani2017attention") == 1
    assert keys(md.Layer(hybrid) >> md.Norm()) == {
        "vaswani2017attention",
        "beltagy2020longformer",
        "xiao2024streamingllm",
    }
    assert cite(md.Dot()) == ""


def test_every_rule_is_due_somewhere():
    grown = md.Grown(md.Dense(8), md.Memory(md.RBF(), gate=md.Novelty(0.1)))
    written = [
        *(make() for make in md.zoo.catalogue().values()),
        *COMPOSITES.values(),
        *FEATURES.values(),
        *(spec for some in LISTS.values() for spec in some.values()),
        md.zoo.softmax().replace(gate=md.Decay(0.9)),
        md.Memory(md.RBF(), md.Ridge(), capacity=md.Budget(9, md.LeaveOneOut())),
        md.Dot().pullback(md.Hedgehog()),
        grown,
    ]
    idle = [rule.references for rule in RULES if not any(cite(s, rules=[rule]) for s in written)]
    assert not idle


def test_a_rule_of_ones_own():
    mine = Rule(("@misc{mine,\n}",), lambda spec: spec == md.RBF())
    assert cite(md.zoo.klms(), rules=[*RULES, mine]).endswith("\n\n@misc{mine,\n}")
    assert cite(md.Memory(md.Dot()), rules=[mine]) == ""
    with pytest.raises(KeyError):
        cite(md.Dot(), rules=[Rule(("nobody1900nothing",), lambda spec: True)])
