//! Registered paths. A pattern is matched segment by segment: `{name}` stands for one segment,
//! `{name}:action` for one that ends so, `{path}` at the end for all that is left. Only patterns
//! become labels, never a path that was asked for.

use crate::protocol::head::Method;
use crate::vocab::Class;

/// Route of a path that is not registered.
pub(super) const OTHER: &str = "other";

/// A registered path.
#[derive(Clone, Copy, Debug)]
pub(super) struct Route {
    pub(super) path: &'static str,
    class: Class,
    streams: bool,
    post: bool,
}

/// A request that generates and may be answered by a stream.
pub(super) const fn generates(path: &'static str) -> Route {
    Route {
        path,
        class: Class::Inference,
        streams: true,
        post: true,
    }
}

/// A request that computes and is answered at once: embeddings, scores, images.
pub(super) const fn computes(path: &'static str) -> Route {
    Route {
        path,
        class: Class::Inference,
        streams: false,
        post: true,
    }
}

/// A request that manages or asks about the server.
pub(super) const fn controls(path: &'static str) -> Route {
    Route {
        path,
        class: Class::Control,
        streams: false,
        post: false,
    }
}

/// A request that looks whether and how the server is.
pub(super) const fn probes(path: &'static str) -> Route {
    Route {
        path,
        class: Class::Probe,
        streams: false,
        post: false,
    }
}

/// A request that is none of these, such as an upgrade to a protocol that is not read.
pub(super) const fn others(path: &'static str) -> Route {
    Route {
        path,
        class: Class::Other,
        streams: false,
        post: false,
    }
}

/// What a request is for, by its method and path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RouteMatch {
    /// Its class.
    pub class: Class,
    /// The registered path, or `other`.
    pub route: &'static str,
    /// Whether its reply may be a stream of events.
    pub streams: bool,
}

/// The first route of the tables that matches. An inference path with another method than POST is
/// `other`, a preflight on any path a probe.
pub(super) fn find(tables: &[&[Route]], method: Method, path: &str) -> RouteMatch {
    let path = path
        .strip_suffix('/')
        .filter(|short| !short.is_empty())
        .unwrap_or(path);
    let found = tables.iter().flat_map(|table| table.iter()).find(|route| {
        (!route.post || method == Method::Post || route.path != "/") && matches(route.path, path)
    });
    let mut matched = match found {
        Some(route) if route.post && method != Method::Post => RouteMatch {
            class: Class::Other,
            route: route.path,
            streams: false,
        },
        Some(route) => RouteMatch {
            class: route.class,
            route: route.path,
            streams: route.streams,
        },
        None => RouteMatch {
            class: Class::Other,
            route: OTHER,
            streams: false,
        },
    };
    if method == Method::Options {
        matched.class = Class::Probe;
    }
    matched
}

fn matches(pattern: &str, path: &str) -> bool {
    if !pattern.contains('{') {
        return pattern == path;
    }
    let mut segments = path.split('/');
    for part in pattern.split('/') {
        let Some(segment) = segments.next() else {
            return false;
        };
        let fits = match part.strip_prefix('{').and_then(|rest| rest.split_once('}')) {
            Some(("path", "")) => return !segment.is_empty(),
            Some((_, end)) => segment.len() > end.len() && segment.ends_with(end),
            None => part == segment,
        };
        if !fits {
            return false;
        }
    }
    segments.next().is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_by_segment() {
        assert!(matches("/v1/responses/{id}", "/v1/responses/resp_1"));
        assert!(!matches("/v1/responses/{id}", "/v1/responses/"));
        assert!(!matches("/v1/responses/{id}", "/v1/responses/a/b"));
        assert!(matches(
            "/v1/responses/{id}/cancel",
            "/v1/responses/a/cancel"
        ));
        assert!(matches("/anthropic/{path}", "/anthropic/v1/messages"));
        assert!(!matches("/anthropic/{path}", "/anthropic"));
        assert!(matches(
            "/v1beta/models/{model}:generateContent",
            "/v1beta/models/g:generateContent"
        ));
        assert!(!matches(
            "/v1beta/models/{model}:generateContent",
            "/v1beta/models/:generateContent"
        ));
    }

    #[test]
    fn methods_decide_the_class() {
        const TABLE: &[&[Route]] = &[&[generates("/"), generates("/a"), probes("/")]];
        assert_eq!(find(TABLE, Method::Post, "/a/").class, Class::Inference);
        assert_eq!(
            find(TABLE, Method::Get, "/a"),
            RouteMatch {
                class: Class::Other,
                route: "/a",
                streams: false
            }
        );
        assert_eq!(find(TABLE, Method::Options, "/a").class, Class::Probe);
        assert_eq!(find(TABLE, Method::Get, "/").class, Class::Probe);
        assert_eq!(find(TABLE, Method::Post, "/").class, Class::Inference);
        assert_eq!(
            find(TABLE, Method::Get, "/x"),
            RouteMatch {
                class: Class::Other,
                route: OTHER,
                streams: false
            }
        );
        assert_eq!(find(TABLE, Method::Post, "").route, OTHER);
    }
}
