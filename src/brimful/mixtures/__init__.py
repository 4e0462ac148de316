"""Wing of mixtures: shares of sources, by draws or by weights of the loss.

::

    in    the lengths of several sources, and a Mixture: the share of each
    out   packs of drawn samples, or factors of the loss; what was drawn, in the record of the plan
    seam  plan.policies.draw.Draw, which Mixture is; base.wings.DRAWS names it

    mixture ─► pack_mixture ─► proportions        stages           source_weights, source_losses
    request    draws, packs    the record         plans in turn    in the loss of a batch
"""

from brimful.mixtures.mixture import Mixture
from brimful.mixtures.stages import MixtureStage, consumed_samples, mixture_stages, plan_stages

__all__ = ["Mixture", "MixtureStage", "consumed_samples", "mixture_stages", "plan_stages"]
