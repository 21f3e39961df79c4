"""Labelled sets in the formats in which they are published. One file a format; each reader yields frozen records.

`nbest`       ESPnet-style n-best lists of a speech recogniser
`conll2003`   named entities, one word a line
`conllu`      Universal Dependencies, with composite tags
`parallel`    translations, a line of each language
`detection`   human originals beside machine continuations; plain texts in JSON Lines
`blimp`       minimal pairs
`glue`        CoLA, SST-2, MRPC, RTE

Running text (WikiText, folders of books, news in JSON Lines) is read by `data/readers`.
"""
