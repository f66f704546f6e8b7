//! Status labels. A status code is a label value only when it is a code somebody defined; a
//! server may send any of 500 numbers, so the rest become their class (`2xx`), which is a value
//! of the vocabulary anyway, and what is no status at all becomes `other`.

use crate::vocab::{Class, Outcome, Status};

/// Declares the codes that are label values.
macro_rules! codes {
    ($($code:literal => $text:literal),+ $(,)?) => {
        /// Every code that is a label value of its own.
        pub const CODES: &[u16] = &[$($code),+];

        /// The label of a code that has its own.
        const fn known(code: u16) -> Option<&'static str> {
            match code { $($code => Some($text),)+ _ => None }
        }
    };
}

codes! {
    100 => "100", 101 => "101", 102 => "102", 103 => "103",
    200 => "200", 201 => "201", 202 => "202", 203 => "203", 204 => "204", 205 => "205",
    206 => "206", 207 => "207", 208 => "208", 226 => "226",
    300 => "300", 301 => "301", 302 => "302", 303 => "303", 304 => "304", 305 => "305",
    307 => "307", 308 => "308",
    400 => "400", 401 => "401", 402 => "402", 403 => "403", 404 => "404", 405 => "405",
    406 => "406", 407 => "407", 408 => "408", 409 => "409", 410 => "410", 411 => "411",
    412 => "412", 413 => "413", 414 => "414", 415 => "415", 416 => "416", 417 => "417",
    418 => "418", 421 => "421", 422 => "422", 423 => "423", 424 => "424", 425 => "425",
    426 => "426", 428 => "428", 429 => "429", 431 => "431", 444 => "444", 451 => "451",
    494 => "494", 495 => "495", 496 => "496", 497 => "497", 499 => "499",
    500 => "500", 501 => "501", 502 => "502", 503 => "503", 504 => "504", 505 => "505",
    506 => "506", 507 => "507", 508 => "508", 510 => "510", 511 => "511", 520 => "520",
    521 => "521", 522 => "522", 523 => "523", 524 => "524", 525 => "525", 526 => "526",
    529 => "529", 530 => "530", 599 => "599",
}

/// The label of a status class, 1 to 5.
pub const fn class_label(class: u8) -> &'static str {
    match class {
        1 => "1xx",
        2 => "2xx",
        3 => "3xx",
        4 => "4xx",
        5 => "5xx",
        _ => "other",
    }
}

/// The value of the `status` label.
pub const fn label(status: Status) -> &'static str {
    match status {
        Status::None => "none",
        Status::ClassOnly(class) => class_label(class),
        Status::Code(code) => match known(code) {
            Some(text) => text,
            None if code < 600 => class_label((code / 100) as u8),
            None => "other",
        },
    }
}

/// The same label with only its class kept.
pub fn coarse(label: &'static str) -> &'static str {
    match label.as_bytes() {
        [first @ b'1'..=b'5', _, _] => class_label(first - b'0'),
        _ => label,
    }
}

/// The status of the series that stands at 0 before an outcome has happened. What could not be
/// read has no status.
pub const fn at_zero(class: Class, outcome: Outcome) -> &'static str {
    match (class, outcome) {
        (Class::Unknown, _) | (_, Outcome::Reset | Outcome::Unobserved) => "none",
        (_, Outcome::Success) => "200",
        (_, Outcome::Error) => "500",
        (_, Outcome::Refused) => "400",
        (_, Outcome::Abort) => "499",
        (_, Outcome::Timeout) => "504",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_number_a_server_may_send_has_one_of_a_bounded_set_of_labels() {
        let labels: BTreeSet<_> = (0..=u16::MAX)
            .map(|code| label(Status::Code(code)))
            .collect();
        assert_eq!(labels.len(), CODES.len() + 6);
        for &code in CODES {
            assert_eq!(label(Status::Code(code)), code.to_string());
            assert_eq!(
                coarse(label(Status::Code(code))),
                format!("{}xx", code / 100)
            );
        }
        assert_eq!(label(Status::Code(299)), "2xx");
        assert_eq!(label(Status::Code(999)), "other");
        assert_eq!(label(Status::Code(0)), "other");
        assert_eq!(label(Status::Code(25_600)), "other");
        assert_eq!(coarse("none"), "none");
    }
}
