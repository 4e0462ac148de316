"""slime: its own rollouts, and schedules of training steps by ``plan_step``.

The process that makes the rollouts also makes the schedule, and a function is all that slime takes
there: ``--rollout-function-path brimful.integrations.slime_rollout.generate_rollout``.
"""

from typing import Any

from brimful.rl.compat.slime import install


def generate_rollout(args: Any, rollout_id: int, data_source: Any, evaluation: bool = False) -> Any:
    """Return a rollout of slime's ``sglang_rollout``, after schedules are ours.

    Args:
        args, rollout_id, data_source, evaluation: as slime passes them.

    Raises:
        The errors of ``install``.
    """
    from slime.rollout import sglang_rollout

    install()
    return sglang_rollout.generate_rollout(args, rollout_id, data_source, evaluation=evaluation)
