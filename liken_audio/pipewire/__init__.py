"""The edge to PipeWire: pw-dump in, pw-cli out."""
