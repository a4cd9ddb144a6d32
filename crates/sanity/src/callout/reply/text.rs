//! A JSON parser that accepts what the scanner of Go's `encoding/json` accepts (`scanner.go`, `decode.go`):
//! four white space characters, numbers kept as written, U+FFFD for lone surrogates and invalid UTF-8, and a
//! depth of at most ten thousand.

/// A JSON value, as it was written.
#[derive(Clone, Debug, PartialEq)]
pub enum Text {
    Null,
    Bool(bool),
    /// The number's text.
    Number(String),
    String(String),
    Array,
    /// Members in order, including duplicates.
    Object(Vec<(String, Text)>),
}

impl Text {
    /// The kind of value, in words for people.
    pub fn kind(&self) -> &'static str {
        match self {
            Text::Null => "null",
            Text::Bool(_) => "true or false",
            Text::Number(_) => "a number",
            Text::String(_) => "a string",
            Text::Array => "a list",
            Text::Object(_) => "an object",
        }
    }
}

/// `maxNestingDepth` in `scanner.go`.
const DEEPEST: usize = 10_000;

/// Depth to which objects are kept: the reply and its capabilities.
const KEPT: usize = 2;

/// Parses exactly one value.
///
/// # Errors
/// Reason and position, if Go reports a syntax error.
pub fn parse(bytes: &[u8]) -> Result<Text, String> {
    let mut reader = Reader { bytes, at: 0 };
    reader.space();
    let value = reader.value(0)?;
    reader.space();
    match reader.peek() {
        None => Ok(value),
        Some(_) => Err(reader.wrong("the end")),
    }
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

type Read<T> = Result<T, String>;

impl Reader<'_> {
    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    fn wrong(&self, expected: &str) -> String {
        let rest = String::from_utf8_lossy(&self.bytes[self.at..]);
        let found = match rest.chars().next() {
            Some(letter) => format!("{letter:?}"),
            None => "the end".to_owned(),
        };
        format!("{found} at byte {}, where {expected} should be", self.at)
    }

    fn space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\r' | b'\n')) {
            self.at += 1;
        }
    }

    fn takes(&mut self, byte: u8) -> bool {
        let is = self.peek() == Some(byte);
        self.at += usize::from(is);
        is
    }

    fn expect(&mut self, byte: u8) -> Read<()> {
        if self.takes(byte) {
            Ok(())
        } else {
            Err(self.wrong(&format!("{:?}", char::from(byte))))
        }
    }

    fn value(&mut self, depth: usize) -> Read<Text> {
        match self.peek() {
            Some(b'{') if depth < KEPT => self.object(depth + 1).map(Text::Object),
            Some(b'{') => self.skip(depth).map(|()| Text::Object(Vec::new())),
            Some(b'[') => self.skip(depth).map(|()| Text::Array),
            Some(b'"') => self.string().map(Text::String),
            Some(b'-' | b'0'..=b'9') => self.number().map(Text::Number),
            Some(b'n') => self.word("null", Text::Null),
            Some(b't') => self.word("true", Text::Bool(true)),
            Some(b'f') => self.word("false", Text::Bool(false)),
            _ => Err(self.wrong("a value")),
        }
    }

    fn word(&mut self, word: &str, value: Text) -> Read<Text> {
        for byte in word.bytes() {
            self.expect(byte)?;
        }
        Ok(value)
    }

    fn object(&mut self, depth: usize) -> Read<Vec<(String, Text)>> {
        self.expect(b'{')?;
        self.space();
        let mut members = Vec::new();
        if self.takes(b'}') {
            return Ok(members);
        }
        loop {
            let name = self.name()?;
            members.push((name, self.value(depth)?));
            self.space();
            if self.takes(b'}') {
                return Ok(members);
            }
            self.expect(b',')?;
        }
    }

    /// Reads a member's name and the colon.
    fn name(&mut self) -> Read<String> {
        self.space();
        let name = self.string()?;
        self.space();
        self.expect(b':')?;
        self.space();
        Ok(name)
    }

    /// Skips a list or an object of any depth.
    fn skip(&mut self, depth: usize) -> Read<()> {
        let mut open = Vec::new();
        loop {
            // Before a value.
            if matches!(self.peek(), Some(b'[' | b'{')) {
                let is_object = self.takes(b'{') || !self.takes(b'[');
                if depth + open.len() >= DEEPEST {
                    return Err(format!("more than {DEEPEST} levels"));
                }
                self.space();
                if !self.takes(if is_object { b'}' } else { b']' }) {
                    open.push(is_object);
                    if is_object {
                        self.name()?;
                    }
                    continue;
                }
            } else {
                self.value(KEPT)?;
            }
            // After a value.
            loop {
                let Some(is_object) = open.last().copied() else {
                    return Ok(());
                };
                self.space();
                if self.takes(if is_object { b'}' } else { b']' }) {
                    open.pop();
                    continue;
                }
                self.expect(b',')?;
                if is_object {
                    self.name()?;
                } else {
                    self.space();
                }
                break;
            }
        }
    }

    fn digits(&mut self) -> Read<()> {
        if !matches!(self.peek(), Some(b'0'..=b'9')) {
            return Err(self.wrong("a digit"));
        }
        while matches!(self.peek(), Some(b'0'..=b'9')) {
            self.at += 1;
        }
        Ok(())
    }

    fn number(&mut self) -> Read<String> {
        let start = self.at;
        self.takes(b'-');
        if !self.takes(b'0') {
            self.digits()?;
        }
        if self.takes(b'.') {
            self.digits()?;
        }
        if self.takes(b'e') || self.takes(b'E') {
            let _ = self.takes(b'+') || self.takes(b'-');
            self.digits()?;
        }
        Ok(String::from_utf8_lossy(&self.bytes[start..self.at]).into_owned())
    }

    fn string(&mut self) -> Read<String> {
        self.expect(b'"')?;
        let mut text = String::new();
        loop {
            match self.peek() {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(text);
                }
                Some(b'\\') => {
                    self.at += 1;
                    text.push(self.escaped()?);
                }
                Some(0x20..) => text.push(self.letter()),
                _ => return Err(self.wrong("a letter")),
            }
        }
    }

    /// Reads one character. An invalid byte becomes U+FFFD.
    fn letter(&mut self) -> char {
        let end = (self.at + 4).min(self.bytes.len());
        let window = &self.bytes[self.at..end];
        let valid = match std::str::from_utf8(window) {
            Ok(text) => text,
            // The bytes before the error are valid.
            Err(error) => std::str::from_utf8(&window[..error.valid_up_to()]).unwrap_or_default(),
        };
        let letter = valid.chars().next();
        self.at += letter.map_or(1, char::len_utf8);
        letter.unwrap_or(char::REPLACEMENT_CHARACTER)
    }

    fn escaped(&mut self) -> Read<char> {
        let letter = match self.peek() {
            Some(b'"') => '"',
            Some(b'\\') => '\\',
            Some(b'/') => '/',
            Some(b'b') => '\u{8}',
            Some(b'f') => '\u{c}',
            Some(b'n') => '\n',
            Some(b'r') => '\r',
            Some(b't') => '\t',
            Some(b'u') => {
                self.at += 1;
                return self.unit();
            }
            _ => return Err(self.wrong("the letter of an escape")),
        };
        self.at += 1;
        Ok(letter)
    }

    /// Reads the four digits after `\u`, and the second half of a surrogate pair if one follows.
    fn unit(&mut self) -> Read<char> {
        let first = self.hex()?;
        if let Some(letter) = char::from_u32(first) {
            return Ok(letter);
        }
        let before = self.at;
        if self.bytes[self.at..].starts_with(b"\\u") {
            self.at += 2;
            let second = self.hex()?;
            let pair = [first, second].map(|unit| u16::try_from(unit).unwrap_or_default());
            if let Some(Ok(letter)) = char::decode_utf16(pair).next() {
                return Ok(letter);
            }
            // The second escape is a character of its own.
            self.at = before;
        }
        Ok(char::REPLACEMENT_CHARACTER)
    }

    fn hex(&mut self) -> Read<u32> {
        let mut unit = 0;
        for _ in 0..4 {
            let digit = self.peek().and_then(|byte| char::from(byte).to_digit(16));
            unit = unit << 4 | digit.ok_or_else(|| self.wrong("four digits of an escape"))?;
            self.at += 1;
        }
        Ok(unit)
    }
}
