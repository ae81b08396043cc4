"""The planner: a learned model of what an edit does to faithfulness, and an agent that plans with it.

look      gradients at a circuit, by groups of pairs            look.py
features  what the network sees of every edge and every edit    features.py
network   predicts the effect of an edit, and how sure it is    network.py
collect   edits tried on training behaviours, and their effects collect.py, records.py
fit       the network from what was collected                   fit.py
plan      an episode: look, plan, try, take                     plan.py
"""
