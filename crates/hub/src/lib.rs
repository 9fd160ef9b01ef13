//! Model names to files: embedded, local, Hugging Face hub, package registries.
