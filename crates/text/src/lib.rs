//! Tokenizers, chat templates, detokenising, stop strings.
