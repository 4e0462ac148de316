"""Media of jobs that write packs: surveyed, laid out in containers, written; and the media of a
producer as they arrive.
"""
