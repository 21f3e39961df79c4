"""Files → batches: documents from anywhere, one tokenizer, memory-mapped shards, windows that are an index.

`readers/`    documents out of text, JSONL, Parquet, Hugging Face data sets, the default corpus
`formats/`    labelled sets in their published formats: n-best lists, CoNLL, parallel text, minimal pairs, GLUE …
`sources`     the source strings of a user → readers
`splits`      train, valid or test by a hash of the content
`tokenizer`   byte-level BPE, trained or existing
`cutting`     a long text in pieces that give the same tokens as the whole
`encoding`    documents → tokens in bounded memory; `memory` gives freed memory back
`shards`      tokens on disk, written whole or not at all; `draft` what an unfinished build has done
`manifest`    what a corpus folder says about itself
`corpus`      a corpus folder, opened; `windows` an index over it; `affix` which part of a window is generated
`negatives`   a folder of generated continuations, opened; `negatives_manifest` its provenance, `negatives_draft` while
              it is made, `negatives_shards` its files, `negatives_contrast` real text beside generated
"""
