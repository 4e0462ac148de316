"""Scripts as trainers ship them: command lines that are built piece by piece are read as the shell would."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from brimful.doctor.config.examine import read_settings
from brimful.errors import SettingsError


def read(script: str, folder: Path) -> dict[str, Any]:
    path = folder / "run.sh"
    path.write_text(script, encoding="utf-8")
    return {key: given.value for key, given in read_settings(path).values.items()}


def test_a_command_grows_in_a_loop(tmp_path: Path) -> None:
    """Megatron-Bridge tries several layouts; what all have in common is read, their differences stay unknown."""
    values = read(
        """
        RUN="srun --mpi=pmix"
        for LAYOUT in "2,1" "4,1"; do
            TP=$(echo "$LAYOUT" | cut -d, -f1)
            CMD="uv run --no-sync python scripts/training/run_recipe.py"
            CMD="$CMD --recipe gpt_oss_20b_sft_config"
            CMD="$CMD model.tensor_model_parallel_size=$TP dataset.enable_offline_packing=true"
            $RUN bash -c "$CMD"
        done
        """,
        tmp_path,
    )
    assert values["recipe"] == "gpt_oss_20b_sft_config"
    assert values["dataset.enable_offline_packing"] is True
    assert not isinstance(values["model.tensor_model_parallel_size"], int)


def test_a_branch_stays_uncertain(tmp_path: Path) -> None:
    values = read(
        """
        PACKING=false
        for SEED in 1 2; do
            if [ "$MODE" = fast ]; then PACKING=true; fi
            trl sft --packing $PACKING --seed 1
        done
        """,
        tmp_path,
    )
    assert values["packing"] not in (True, False)


def test_echo_joins_lines(tmp_path: Path) -> None:
    values = read(
        r"""
        OVERRIDES="
            train.micro_batch_size=1 \
            dataset.enable_offline_packing=true
        "
        CMD="python run_recipe.py $(echo "$OVERRIDES" | tr '\n' ' ' | sed 's/  \+/ /g')"
        bash -c "$CMD"
        """,
        tmp_path,
    )
    assert values == {"train.micro_batch_size": 1, "dataset.enable_offline_packing": True}


@pytest.mark.parametrize("start", ["read -r -d '' RUN <<'EOF' || true", "RUN=$(cat <<'EOF'"])
def test_a_here_document_is_a_variable(start: str, tmp_path: Path) -> None:
    lines = [start, "torchrun --nproc_per_node=8 train.py --packing ${PACKING}", "EOF"]
    lines += [")"] if "cat" in start else []
    lines += ["export PACKING=true", 'srun bash -lc "${RUN}"']
    assert read("\n".join(lines), tmp_path)["packing"] is True


def test_a_program_of_the_environment(tmp_path: Path) -> None:
    """verl's own tests name the program from outside; its settings are there all the same."""
    assert read("$COMMAND data.use_dynamic_bsz=True", tmp_path) == {"data.use_dynamic_bsz": True}
    with pytest.raises(SettingsError, match="starts no training"):
        read("$CLEANUP", tmp_path)
