"""The same core over a simulated world: a heap and a clock, learning curves, throughput and faults.

scaling     how fast a trial runs on so many atoms (the truth, which a scheduler may know wrongly)
curves      what a workload is: configurations and learning curves by trial
paper       the synthetic workload of the HyperSched paper
crossing    saturating curves that cross
table       recorded learning curves from files
recorded    a finished run's own log
faults      crashes, hangs, late exits, refused launches and lost nodes, from a seed
world       heap and clock: performs the core's actions and says what happened
simulate    one run
table_of    the `[simulation]` table of an experiment file
sweep       many runs on all cores
"""
