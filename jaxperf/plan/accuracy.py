"""How wrong the predictions are: errors on published figures that set none of the model's constants.

`benchmarks/plan/validate.py` computes these figures from its test tables, and a test holds them against it.
"""

# published or measured over predicted seconds of steps, without the largest and the smallest
COMPUTE = (0.96, 1.54)
STEPS = (17, 0.2, 14)  # number of steps, median error, how many are within 25 %
COLLECTIVES = (135, 0.17)  # number of published collectives, median error
IN_NODE = 1.54  # the factor within which nine of ten collectives inside a node are right
# and over several nodes, by network; without a test table, a guess: that of the worst one
BETWEEN = {"efa": 2.45, "infiniband": 1.44}


def collective_factor(network: str, between_nodes: bool) -> float:
    return BETWEEN.get(network, max(BETWEEN.values())) if between_nodes else IN_NODE


def summary(network: str) -> str:
    guess = "" if network in BETWEEN else " (a guess: no table tests it)"
    return (
        f"tested on {STEPS[0]} steps ({STEPS[2]} within 25%, median error {STEPS[1]:.0%}) and on "
        f"{COLLECTIVES[0]} published collectives (median {COLLECTIVES[1]:.0%}; nine of ten within a factor "
        f"of {IN_NODE:.2f} in a node, of {collective_factor(network, True):.2f}{guess} over {network}); none "
        "of them set a constant"
    )
