"""Planning functions of trainers, under their own names: thin names over ``plan_step``.

Replacing one import is the whole change:

======================  ==============================================================================
``compat.verl``         ``get_seqlen_balanced_partitions``, ``rearrange_micro_batches``
``compat.openrlhf``     ``get_seqlen_balanced_partitions``, ``get_minimum_num_micro_batch_size``
``compat.slime``        ``get_seqlen_balanced_partitions``, ``build_dp_schedule``
``compat.nemo_rl``      ``SequencePacker``, ``get_packer``
``compat.skyrl``        ``make_seq_packer``
``compat.trl``          ``TokenBudgetBatcher``
``compat.megatron``     ``balanced_cp_scheduler``
======================  ==============================================================================

Signatures and shapes of results are theirs. Where their contract lets a micro-batch exceed its budget, these keep it, and
their docstrings say so.
"""
