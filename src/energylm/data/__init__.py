"""Files → batches: documents from anywhere, one tokenizer, memory-mapped shards, windows that are an index.

`document`        a document, its source, its split; `sources`, `dataset_sources` read them, `text_files` the bytes
`encoding`        documents → tokens in bounded memory, with a `tokenizer`, which also says what tokens stand for
`corpus`          a corpus folder, opened; `manifest` what it says about itself, `draft` while it is made
`windows`         an index over a corpus; `overlap` which of them were seen before
`negatives`       a folder of generated continuations; `contrast` puts real text beside them
`examples`        labelled texts for encoders: `sentence_tasks`, `squad`, and `text_blocks` of `detection` sets
`sequence_pairs`  sources and targets; `tagging`, `nbest`, `small_languages` read their published formats
"""
