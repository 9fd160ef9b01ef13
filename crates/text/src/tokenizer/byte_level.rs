//! GPT-2's alphabet: each of the 256 bytes is one printable character.

/// The character of each byte: printable Latin-1 is unchanged, the other 68 bytes follow from U+0100.
const CHARS: [char; 256] = chars();

const fn chars() -> [char; 256] {
    let mut table = ['\0'; 256];
    let (mut byte, mut next) = (0, 0x100);
    while byte < 256 {
        let code = if prints(byte as u8) {
            byte as u32
        } else {
            next += 1;
            next - 1
        };
        table[byte] = match char::from_u32(code) {
            Some(c) => c,
            None => '\0',
        };
        byte += 1;
    }
    table
}

const fn prints(byte: u8) -> bool {
    matches!(byte, 0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF)
}

/// The character of a byte.
pub(super) fn char_of(byte: u8) -> char {
    CHARS[usize::from(byte)]
}

fn byte_of(c: char) -> Option<u8> {
    match u32::from(c) {
        code @ 0..=0xFF => u8::try_from(code).ok().filter(|&byte| prints(byte)),
        code @ 0x100..=0x143 => (0..=255).find(|&byte| u32::from(char_of(byte)) == code),
        _ => None,
    }
}

/// Appends the bytes of a token's text; a text with any other character is used unchanged.
pub(super) fn decode(text: &str, out: &mut Vec<u8>) {
    let start = out.len();
    for c in text.chars() {
        match byte_of(c) {
            Some(byte) => out.push(byte),
            None => {
                out.truncate(start);
                out.extend_from_slice(text.as_bytes());
                return;
            }
        }
    }
}

/// The text in GPT-2's alphabet.
pub(super) fn encode(text: &str) -> String {
    text.bytes().map(char_of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_round_trips_through_its_own_character() {
        for byte in 0..=255 {
            assert_eq!(byte_of(char_of(byte)), Some(byte));
        }
        assert_eq!((char_of(b' '), char_of(b'\n'), char_of(0xAD)), ('Ġ', 'Ċ', '\u{143}'));
        let mut out = Vec::new();
        decode(&encode("a b\n€"), &mut out);
        assert_eq!(out, "a b\n€".as_bytes());
    }

    #[test]
    fn a_text_outside_the_alphabet_is_unchanged() {
        let mut out = Vec::new();
        decode("a▁b", &mut out);
        assert_eq!(out, "a▁b".as_bytes());
    }
}
