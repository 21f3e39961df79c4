"""What changes weights: one engine for all families, and a task file for each.

`engine`          updates, validation, checkpoints, early stopping: `train(task, config, folder=…)`
`task`            what a family must provide
`schedule`        the learning rate of each update
`optimizer`       AdamW's parameter groups, layer-wise decay
`checkpoint`      weights and optimiser state on disk
`early_stopping`  when to stop, which weights were best
`journal`         one JSON line per report, TensorBoard
`meter`           sums put aside between two reports
`state`           where a run stands, what came of it
`cpu`             threads and bfloat16 kernels of the CPU
`processes`       Accelerate: devices, ranks, sums over processes
`seeding`         the one place that seeds torch's global generator, and only for a while
"""
