"""Planning functions of trainers, under their own names: thin wrappers of ``plan_step``.

To use one, replace one import:

======================  ==============================================================================
``compat.verl``         ``get_seqlen_balanced_partitions``, ``rearrange_micro_batches``, ``install``
``compat.openrlhf``     ``get_seqlen_balanced_partitions``, ``get_minimum_num_micro_batch_size``
``compat.slime``        ``get_seqlen_balanced_partitions``, ``build_dp_schedule``, ``install``
``compat.nemo_rl``      ``SequencePacker``, ``get_packer``
``compat.skyrl``        ``make_seq_packer``
``compat.trl``          ``TokenBudgetBatcher``, ``TreeRow``
``compat.megatron``     ``balanced_cp_scheduler``, ``dynamic_cp_scheduler``
======================  ==============================================================================

Signatures and result shapes match the trainers. If a trainer lets a micro-batch exceed its budget,
the function here keeps the budget, and its docstring says so.
"""
