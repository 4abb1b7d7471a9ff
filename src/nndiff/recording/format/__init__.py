"""What a recording is on disk: events, manifest, shards, digests; needs no torch."""
