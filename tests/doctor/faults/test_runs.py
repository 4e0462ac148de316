"""Faults of running jobs that one forward, the loader's word or the first batch alone does not show, each with its right neighbor."""

from types import SimpleNamespace

import pytest

pytest.importorskip("torch")

import torch
import torch.nn.functional as F
from torch import nn

from brimful.doctor import probe
from brimful.doctor.report import Evidence
from tests.doctor.faults.jobs import IGNORE, LENGTHS, Attention, Body, Decoder, batch, boundaries, loss_of

ROW = LENGTHS[:1]
"""Samples of one row."""


def report_of(
    model, batches, step=lambda model, one: model(**one).loss, *, loaded=None, accumulation=1, tell=None, **options
):
    """Train a model on some batches, and return the probe's report."""
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with probe(model, **options) as check:
        for number, (one, own) in enumerate(zip(batches, loaded or batches, strict=True)):
            check.tell_batch(own)
            loss = step(model, one)
            if tell is not None:
                check.tell_loss(tell(loss))
            loss.backward()
            if number % accumulation == accumulation - 1:
                optimizer.step()
                optimizer.zero_grad()
    return check.report


def problems(report):
    return [item.problem for item in report.findings]


class Packed(Decoder):
    """Takes positions and boundaries, and obeys the positions."""

    def forward(self, input_ids, position_ids, labels=None, cu_seqlens=None):
        return super().forward(input_ids, position_ids.long(), labels)


def shifted(bounds, number=1):
    return torch.cat([bounds[:1], bounds[1:-1] + number, bounds[-1:]])


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ({"labels": batch(ROW)["input_ids"]}, "wrong_targets"),
        ({"cu_seqlens": shifted(boundaries(ROW))}, "boundaries_short"),
        ({"cu_seqlens": boundaries(((7, 15, 10),))}, "boundaries_short"),
        ({"cu_seqlens": boundaries(ROW).long()}, "number_types"),
        ({"position_ids": batch(ROW)["position_ids"].bfloat16()}, "number_types"),
    ],
)
def test_what_a_batch_shows_is_never_nothing(words, problem):
    """The model obeys the positions, so no forward shows these."""
    report = report_of(Packed(), [batch(ROW, **words)])
    assert problem in problems(report), str(report)
    assert "NOTHING" not in report.verdict
    assert report_of(Packed(), [batch(ROW, cu_seqlens=boundaries(ROW))]).ok


@pytest.mark.parametrize(("number", "is_right"), [(0, True), (1, False)])
def test_a_loader_and_a_call_tell_the_same_samples(number, is_right):
    one, bounds = batch(ROW), shifted(boundaries(ROW), number)
    report = report_of(Decoder(), [one], loaded=[{**batch(ROW), "seq_lengths": bounds.diff()[None]}])
    assert report.ok is is_right, str(report)
    if not is_right:
        assert "boundaries_short" in problems(report)
        assert "seq_lengths and position_ids contradict each other" in " ".join(str(report).split())


def test_positions_of_a_loader_that_the_call_has_too():
    one = batch(ROW)
    other = {**batch(ROW), "position_ids": batch(((9, 7, 6, 10),))["position_ids"]}
    assert problems(report_of(Decoder(), [one], loaded=[other])) == ["boundaries_short"]
    assert report_of(Decoder(), [one], loaded=[batch(ROW)]).ok


class FourRows(Decoder):
    def forward(self, input_ids, position_ids, labels=None):
        return super().forward(input_ids, position_ids[self.row], labels)


@pytest.mark.parametrize("row", [0, 1])
def test_text_and_axes_of_mrope_begin_together(row):
    """One of the four rows runs on; the model reads another one."""
    place = batch(ROW)["position_ids"]
    model = FourRows()
    model.row = 1 - row
    rows = place.expand(4, -1, -1).clone()
    assert report_of(model, [batch(ROW, position_ids=rows)]).ok
    rows[slice(0, 1) if row == 0 else slice(1, 4)] = torch.arange(32)
    assert "positions_run_on" in problems(report_of(model, [batch(ROW, position_ids=rows)]))


def test_three_rows_of_mrope_have_their_own_way_out():
    class ThreeRows(Decoder):
        def forward(self, input_ids, position_ids, labels=None):
            return super().forward(input_ids, torch.arange(32).expand_as(input_ids), labels)

    rows = batch(ROW)["position_ids"].expand(3, -1, -1).clone()
    (finding,) = report_of(ThreeRows(), [batch(ROW, position_ids=rows)]).findings
    assert finding.change == "position_ids of 4 rows, the positions of the text first"


@pytest.mark.parametrize(("start", "is_right"), [(0, False), (2, True)])
def test_positions_from_pad_token_id_on(start, is_right):
    model = Decoder()
    model.config.model_type, model.config.pad_token_id = "roberta", 1
    one = batch(ROW)
    one["position_ids"] = one["position_ids"] + start
    report = report_of(model, [one])
    assert report.ok is is_right, str(report)
    if not is_right:
        assert report.findings[0].detail.startswith("positions begin 2 before the first one of this model")
        assert [line.evidence.value for line in report.lines if line.topic == "positions"] == ["shown"]


@pytest.mark.parametrize(("last", "is_right"), [(2, True), (5, False)])
def test_samples_without_an_end(last, is_right):
    tokenizer = SimpleNamespace(eos_token_id=2)
    one = batch(ROW)
    one["input_ids"] = one["input_ids"].clamp_min(3)
    one["input_ids"][0, boundaries(ROW)[1:].long() - 1] = last
    one["labels"] = one["input_ids"].masked_fill(one["position_ids"] == 0, IGNORE)
    report = report_of(Decoder(), [one], tokenizer=tokenizer)
    assert problems(report) == [] if is_right else ["lost_eos"]
    assert not report.notes, "texts of samples stay out of logs"


class Unshifted(Decoder):
    """Takes labels as they are."""

    def forward(self, input_ids, position_ids, labels=None):
        logits = super().forward(input_ids, position_ids).logits
        return SimpleNamespace(logits=logits, loss=F.cross_entropy(logits.flatten(0, 1), labels.flatten()))


@pytest.mark.parametrize(
    ("model", "collator_shifts"), [(Decoder, False), (Decoder, True), (Unshifted, True), (Unshifted, False)]
)
def test_labels_are_shifted_once(model, collator_shifts):
    one = batch(ROW)
    if collator_shifts:
        one["labels"] = F.pad(one["labels"][:, 1:], (0, 1), value=IGNORE)
    report = report_of(model(), [one])
    if (model is Unshifted) is collator_shifts:
        assert report.ok, str(report)
    else:
        (finding,) = report.findings
        assert (finding.topic, finding.problem) == ("targets", "wrong_targets")
        assert "shifted twice (by collator and model), or never" in finding.detail


class CachedMask(Decoder):
    """Keeps the samples of its first batch."""

    known = None

    def forward(self, input_ids, position_ids, labels=None):
        if self.known is None:
            self.known = position_ids.clone()
        document = (self.known == 0).cumsum(1)
        logits = self.head(self.hidden(self.embedded(input_ids, position_ids), document))
        return SimpleNamespace(logits=logits, loss=loss_of(logits, labels))


@pytest.mark.parametrize(("model", "later"), [(CachedMask, 0), (CachedMask, 1), (CachedMask, 3), (Decoder, 2)])
def test_later_batches(model, later):
    other = ((12, 8, 12),)
    batches = [batch(ROW), batch(other, seed=1), batch(ROW, seed=2), batch(other, seed=3)]
    report = report_of(model(), batches, later=later)
    if model is Decoder or not later:
        assert report.ok, str(report)
    else:
        assert report.findings[0].detail.startswith("a later batch: other tokens in the sample at row 0")
    assert [line.topic for line in report.lines].count("step") == 1


class LeakyBackward(torch.autograd.Function):
    """Attention of which only the forward keeps samples apart."""

    @staticmethod
    def forward(ctx, query, key, value, seen, other):
        ctx.save_for_backward(query, key, value, other)
        return F.scaled_dot_product_attention(query, key, value, attn_mask=seen)

    @staticmethod
    def backward(ctx, gradient):
        *parts, other = ctx.saved_tensors
        with torch.enable_grad():
            leaves = [part.detach().requires_grad_() for part in parts]
            output = F.scaled_dot_product_attention(*leaves, attn_mask=other)
        return (*torch.autograd.grad(output, leaves, gradient), None, None)


class OwnKernel(Attention):
    obeys = True

    def forward(self, x, document, mask=None):
        query, key, value = self.inputs(x)[:, None].chunk(3, dim=-1)
        seen = (document[:, :, None] == document[:, None]).tril()[:, None]
        other = seen if self.obeys else torch.ones_like(seen).tril()
        return self.output(LeakyBackward.apply(query, key, value, seen, other)[:, 0])


class ForwardOnly(OwnKernel):
    obeys = False


@pytest.mark.parametrize(("kernel", "is_right"), [(OwnKernel, True), (ForwardOnly, False)])
def test_a_leak_in_the_backward_alone(kernel, is_right):
    model = Decoder([Attention, kernel, Attention])
    report = report_of(model, [batch()])
    assert report.ok is is_right, str(report)
    assert "gradients not looked at" not in str(report)
    if not is_right:
        (finding,) = report.findings
        assert finding.detail.startswith("only the backward: a sample has gradients at")


@pytest.mark.filterwarnings("ignore")
def test_gradients_that_cannot_be_taken_are_not_looked_at():
    """The older kind of checkpoint takes no gradients but the ones of weights."""

    class Reentrant(Decoder):
        def hidden(self, x, document, mask=None):
            for layer in self.layers:
                x = torch.utils.checkpoint.checkpoint(layer, x, document, use_reentrant=True)
            return x

    report = report_of(Reentrant(), [batch()])
    assert report.ok
    assert "losses; gradients not looked at)" in " ".join(str(report).split())


class Scaled(Decoder):
    """Positions are scaled by the row, or by nothing."""

    scales = True

    def embedded(self, ids, place):
        factor = 32 / ids.shape[1] if self.scales else 1.0
        return self.embed(ids) + factor * self.place(place)


@pytest.mark.parametrize("scales", [True, False])
def test_numbers_that_depend_on_the_length_of_the_row(scales):
    model = Scaled()
    model.scales = scales
    report = report_of(model, [batch(ROW)])
    assert report.ok is not scales, str(report)
    if scales:
        (finding,) = report.findings
        assert finding.topic == "positions"
        assert "from the same samples alone, in a row of their own length" in finding.detail
        assert "scale positions alike in all rows" in finding.change


def test_rows_of_one_length_say_so():
    class Static(Decoder):
        def forward(self, input_ids, position_ids, labels=None):
            assert input_ids.shape[1] == 32
            return super().forward(input_ids, position_ids, labels)

    report = report_of(Static(), [batch(ROW)])
    assert report.ok
    assert "losses of samples alone, in rows of the same length, differ by" in str(report)


class S6Layer(nn.Module):
    """A recurrence of one's own: gets the samples, and runs on."""

    def __init__(self, width):
        super().__init__()
        self.input = nn.Linear(width, width)

    def forward(self, x, positions):
        states = [self.input(x)[:, 0]]
        for index in range(1, x.shape[1]):
            states.append(0.8 * states[-1] + self.input(x)[:, index])
        return torch.stack(states, dim=1)


class Own(Body):
    def __init__(self, passes):
        super().__init__()
        self.passes = passes
        self.layers = nn.ModuleList([S6Layer(self.width), S6Layer(self.width)])

    def forward(self, tokens, positions):
        x = self.embedded(tokens, torch.zeros_like(tokens))
        for layer in self.layers:
            x = layer(x, positions if self.passes else None)
        return self.head(x)


@pytest.mark.parametrize(
    ("passes", "place", "problem"),
    [
        (True, "samples", "boundaries_ignored"),
        (False, "samples", "boundaries_ignored"),
        (True, "row", "boundaries_missing"),
    ],
)
def test_the_cause_is_what_a_layer_was_given(passes, place, problem):
    """No name of a class says that it has a state, and the loader's word is another one than the model's."""
    one = batch(ROW)
    positions = one["position_ids"] if place == "samples" else torch.arange(32)[None]
    loaded = {**one, "position_ids": positions, "cu_seqlens": boundaries(ROW)}
    report = report_of(
        Own(passes), [one], lambda model, one: model(one["input_ids"], positions).square().mean(), loaded=[loaded]
    )
    assert problems(report)[0] == problem, str(report)
    assert "nothing in the batch says" not in str(report) or problem == "boundaries_missing"


def test_arguments_without_names_are_told_how():
    class Star(Decoder):
        def forward(self, *args):
            return super().forward(*args)

    one = batch(ROW)
    values = list(one.values())
    order = [values[0], values[2], values[1]]
    report = report_of(Star(), [one], lambda model, one: model(*order).loss)
    assert "not shown: no token ids in the batch" in str(report)
    assert "tokens= names the argument" in " ".join(str(report).split())
    assert report.verdict.startswith("NOT SHOWN")
    assert (
        report_of(Star(), [one], lambda model, one: model(*order).loss, tokens="argument 0").isolation is Evidence.SHOWN
    )


class Noisy(Decoder):
    """A run with dropout, and noise on embeddings in training."""

    def __init__(self, dropout=0.0, noise=0.0, smoothing=0.0, z=0.0):
        super().__init__()
        self.drop, self.neftune_noise_alpha, self.smoothing, self.z = nn.Dropout(dropout), noise, smoothing, z

    def embedded(self, ids, place):
        x = self.drop(super().embedded(ids, place))
        return x + self.neftune_noise_alpha * torch.rand_like(x) if self.training else x

    def forward(self, input_ids, position_ids, labels=None):
        output = super().forward(input_ids, position_ids, labels)
        if labels is not None and (self.smoothing or self.z):
            flat = output.logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten()
            output.loss = F.cross_entropy(*flat, label_smoothing=self.smoothing)
            output.loss = output.loss + self.z * flat[0].logsumexp(-1).square().mean()
        return output


def fitted(**options):
    """A model whose losses are far from the one of a uniform guess."""
    torch.manual_seed(0)
    model = Noisy()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(30):
        optimizer.zero_grad()
        model(**batch()).loss.backward()
        optimizer.step()
    other = Noisy(**options)
    other.load_state_dict(model.state_dict())
    return other


NOISES = [{"dropout": 0.3}, {"noise": 1.0}, {"smoothing": 0.1}, {"z": 0.01}, {}]


@pytest.mark.parametrize("tell", [None, lambda loss: loss], ids=["returned", "told"])
@pytest.mark.parametrize("options", NOISES, ids=str)
def test_noise_and_additions_accuse_no_divisor(options, tell):
    report = report_of(fitted(**options), [batch()], tell=tell)
    assert report.ok, str(report)
    is_compared = not options.keys() & {"smoothing", "z"}
    assert [line.evidence.value for line in report.lines if line.topic == "divisor"] == [
        "shown" if is_compared else "unknown"
    ]
    assert ("unknown: divisor" in report.verdict) is not is_compared


@pytest.mark.parametrize("options", [{"dropout": 0.3}, {"noise": 1.0}], ids=str)
@pytest.mark.parametrize("size", [64, 2], ids=["positions", "rows"])
def test_a_wrong_divisor_is_found_under_noise(options, size):
    """57 targets in 2 rows of 32 tokens."""
    report = report_of(fitted(**options), [batch()], tell=lambda loss: loss * 57 / size)
    assert problems(report) == ["divisor"]
    assert report.findings[0].detail.endswith(f"it is divided by {size}")


@pytest.mark.parametrize("tell", [None, lambda loss: loss, lambda loss: loss / 2], ids=["returned", "told", "told ÷ 2"])
@pytest.mark.parametrize("is_even", [True, False])
def test_means_of_micro_batches(tell, is_even):
    second = batch(seed=1)
    if not is_even:
        second["labels"][:, :20] = IGNORE
    report = report_of(Decoder(), [batch(), second], accumulation=2, tell=tell)
    assert problems(report) == [] if is_even else ["divisor"], str(report)
    if not is_even:
        assert "22 to 57 targets" in report.findings[0].detail


class Lora(nn.Module):
    """A frozen layer with an adapter of low rank and its dropout."""

    def __init__(self, layer, rank=2):
        super().__init__()
        self.layer, self.drop = layer.requires_grad_(False), nn.Dropout(0.2)
        self.down, self.up = nn.Linear(layer.in_features, rank), nn.Linear(rank, layer.out_features)

    def forward(self, x):
        return self.layer(x) + self.up(self.down(self.drop(x)))


def adapted():
    model = Decoder().requires_grad_(False)
    for layer in model.layers:
        layer.mixer.inputs = Lora(layer.mixer.inputs)
    return model


class Checkpointed(Decoder):
    def hidden(self, x, document, mask=None):
        for layer in self.layers:
            x = torch.utils.checkpoint.checkpoint(layer, x, document, use_reentrant=False)
        return x


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "make",
    [
        adapted,
        Checkpointed,
        pytest.param(lambda: torch.compile(Decoder(), backend="eager"), marks=pytest.mark.long),
    ],
    ids=["lora", "checkpointing", "compile"],
)
def test_right_runs_are_not_accused(make):
    report = report_of(make(), [batch(), batch(seed=1)], later=1)
    assert report.ok, str(report)
    assert report.verdict == "NOTHING FOUND: samples were shown to be apart", str(report)
    assert "gradients not looked at" not in str(report)


@pytest.mark.parametrize(
    ("layer", "problem"), [(0, "boundaries_ignored"), (1, "boundaries_lost"), (2, "boundaries_lost")]
)
def test_a_layer_that_is_not_told_where_samples_begin_is_named(layer, problem):
    """The first one is called by the model, which was told; the others lose what the layer before them had."""
    report = report_of(Decoder(leaky=[layer]), [batch()])
    assert problems(report) == [problem], str(report)
    assert f"(layer {layer + 1} of 3)" in report.findings[0].detail
