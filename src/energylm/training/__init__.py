"""What changes weights: one engine for all families, and a task file for each.

`engine`       updates, validation, checkpoints, early stopping: `train(task, config, folder=…)`
`task`         what a family must provide; each `…_task` does so for one
`optimizer`    the learning rate of each update, AdamW's parameter groups, layer-wise decay
`checkpoint`   weights and optimiser state on disk; `state` where a run stands and what came of it
`journal`      one JSON line per report, TensorBoard, and the sums put aside between two reports
`processes`    Accelerate: devices, ranks, sums over processes; `sharding` weights shared out among them
`calibration`  scale and shift of a trained energy, on held-out contexts
"""
