"""Files in, files out: documents of sentences with nested entities, in the formats that people hold."""
