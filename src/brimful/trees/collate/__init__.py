"""Rows of trees in the words of attention and loss: what each token sees, and which place predicts
it.
"""
