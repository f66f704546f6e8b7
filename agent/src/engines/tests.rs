//! Recognition, routes and command lines of all profiles together.

use super::*;
use crate::protocol::head::parse_request_head;

const PYTHON: &str = "/usr/bin/python3.11";

fn process(exe: &str, comm: &str, cmdline: &[&str], mapped: &[&str]) -> ProcessFacts {
    let own = |list: &[&str]| list.iter().map(|text| (*text).to_owned()).collect();
    ProcessFacts {
        comm: comm.to_owned(),
        cmdline: own(cmdline),
        exe: exe.to_owned(),
        mapped: own(mapped),
    }
}

fn python(line: &str) -> ProcessFacts {
    process(PYTHON, "python", &line.split(' ').collect::<Vec<_>>(), &[])
}

fn is(facts: &ProcessFacts) -> Option<(Engine, Role)> {
    recognise(facts).map(|found| (found.engine, found.role))
}

fn models(engine: Engine, line: &str) -> Vec<String> {
    model_from_cmdline(
        engine,
        &line.split(' ').map(str::to_owned).collect::<Vec<_>>(),
    )
}

#[test]
fn servers_are_recognised_by_command_line() {
    for (line, expected) in [
        (
            "/venv/bin/python /venv/bin/vllm serve m --port 8100",
            (Engine::Vllm, Role::Api),
        ),
        (
            "python3 -m vllm.entrypoints.openai.api_server --model m",
            (Engine::Vllm, Role::Api),
        ),
        (
            "python3 -u -X dev -m vllm.entrypoints.openai.api_server",
            (Engine::Vllm, Role::Api),
        ),
        ("python -m dynamo.vllm --model m", (Engine::Vllm, Role::Api)),
        (
            "python -m sglang.launch_server --model-path m",
            (Engine::Sglang, Role::Api),
        ),
        (
            "python /usr/local/bin/sglang serve m",
            (Engine::Sglang, Role::Api),
        ),
        (
            "/usr/bin/python3 /usr/local/bin/trtllm-serve m --port 8000",
            (Engine::TensorRtLlm, Role::Api),
        ),
        (
            "/usr/bin/python3 /usr/local/bin/trtllm-serve disaggregated -c x.yaml",
            (Engine::TensorRtLlm, Role::Gateway),
        ),
        (
            "python -m llama_cpp.server --model m.gguf",
            (Engine::LlamaCpp, Role::Api),
        ),
        ("python /venv/bin/mstar serve m", (Engine::Mstar, Role::Api)),
        (
            "python /venv/bin/mstar-node --join h",
            (Engine::Mstar, Role::Worker),
        ),
        (
            "python /venv/bin/smg launch --host 127.0.0.1",
            (Engine::Smg, Role::Gateway),
        ),
        (
            "python -m sglang_router.launch_router --port 3",
            (Engine::Smg, Role::Gateway),
        ),
        (
            "python -m dynamo.frontend --http-port 8000",
            (Engine::Dynamo, Role::Gateway),
        ),
        (
            "python /venv/bin/litellm --config c.yaml",
            (Engine::LiteLlm, Role::Gateway),
        ),
        (
            "python -m litellm --port 4000",
            (Engine::LiteLlm, Role::Gateway),
        ),
        (
            "python /venv/bin/uvicorn litellm.proxy.proxy_server:app --port 4000",
            (Engine::LiteLlm, Role::Gateway),
        ),
    ] {
        assert_eq!(is(&python(line)), Some(expected), "{line}");
    }
}

#[test]
fn native_servers_are_recognised_by_executable_and_command_line() {
    for (exe, cmdline, expected) in [
        (
            "/opt/llama-server",
            "bin/llama-server -m m.gguf --port 1",
            (Engine::LlamaCpp, Role::Api),
        ),
        (
            "/app/llama-server (deleted)",
            "/app/llama-server",
            (Engine::LlamaCpp, Role::Api),
        ),
        (
            "/usr/bin/vllm-rs",
            "vllm-rs --port 1",
            (Engine::Vllm, Role::Api),
        ),
        (
            "/u/mindieservice_daemon",
            "./bin/mindieservice_daemon",
            (Engine::MindIe, Role::Api),
        ),
        (
            "/u/ms_coordinator",
            "ms_coordinator c.json",
            (Engine::MindIe, Role::Gateway),
        ),
        (
            "/bin/mstar-server",
            "mstar-server",
            (Engine::Mstar, Role::Api),
        ),
        ("/bin/smg", "smg launch", (Engine::Smg, Role::Gateway)),
        (
            "/bin/modelexpress-server",
            "modelexpress-server --port 1",
            (Engine::ModelExpress, Role::Api),
        ),
        (
            "/usr/sbin/nginx",
            "nginx: worker process",
            (Engine::Nginx, Role::Gateway),
        ),
        (
            "/usr/local/bin/envoy",
            "envoy -c e.yaml",
            (Engine::Envoy, Role::Gateway),
        ),
    ] {
        let words: Vec<&str> = if cmdline.starts_with("nginx: ") {
            vec![cmdline]
        } else {
            cmdline.split(' ').collect()
        };
        assert_eq!(
            is(&process(exe, "x", &words, &[])),
            Some(expected),
            "{cmdline}"
        );
    }
    assert!(
        only_when_named(Engine::Nginx)
            && only_when_named(Engine::Envoy)
            && !only_when_named(Engine::Vllm)
    );
}

#[test]
fn titles_give_the_role() {
    for (title, engine, role) in [
        ("VLLM::APIServer_0", Engine::Vllm, Role::Api),
        ("VLLM::EngineCore_DP1", Engine::Vllm, Role::Core),
        ("VLLM::Worker_TP0", Engine::Vllm, Role::Worker),
        ("VLLM::DPCoordinator", Engine::Vllm, Role::Other),
        ("sglang::scheduler_TP0", Engine::Sglang, Role::Core),
        ("sglang::detokenizer", Engine::Sglang, Role::Detokenizer),
        ("sglang::detokenizer_router", Engine::Sglang, Role::Other),
        ("sglang::tokenizer_worker:31", Engine::Sglang, Role::Api),
        (
            "sglang::data_parallel_controller",
            Engine::Sglang,
            Role::Other,
        ),
        ("smg::router", Engine::Smg, Role::Gateway),
    ] {
        let comm = &title[..title.len().min(15)];
        assert_eq!(
            is(&process(PYTHON, comm, &[title, "", ""], &[])),
            Some((engine, role)),
            "{title}"
        );
        if title != "sglang::detokenizer_router" {
            assert_eq!(
                is(&process(PYTHON, comm, &[], &[])),
                Some((engine, role)),
                "comm {comm}"
            );
        }
    }
    let mapped = ["/v/lib/python3.11/site-packages/vllm/_C.abi3.so"];
    assert_eq!(
        is(&process(PYTHON, "x", &["PROD::EngineCore"], &mapped)),
        Some((Engine::Vllm, Role::Core))
    );
    assert_eq!(is(&process(PYTHON, "x", &["PROD::EngineCore"], &[])), None);
}

#[test]
fn mapped_files_decide_where_nothing_else_does() {
    let xllama = ["/v/site-packages/xllamacpp/xllamacpp.abi3.so"];
    let found = recognise(&process(
        PYTHON,
        "python",
        &["python", "server.py", "m.gguf", "8113"],
        &xllama,
    ));
    assert_eq!(
        found.map(|f| (f.engine, f.why)),
        Some((Engine::LlamaCpp, "maps xllamacpp/xllamacpp.abi3.so"))
    );
    let smg = ["/v/site-packages/smg/smg_rs.abi3.so"];
    let found = recognise(&process(
        PYTHON,
        "smg::router",
        &["/v/bin/python", "/v/bin/x"],
        &smg,
    ));
    assert_eq!(found.map(|f| f.engine), Some(Engine::Smg));
}

#[test]
fn tools_clients_and_wrappers_are_not_servers() {
    let vllm = ["/v/site-packages/vllm/_C.abi3.so"];
    for (exe, cmdline) in [
        ("/usr/bin/vim", vec!["vim", "vllm", "serve.txt"]),
        ("/usr/bin/grep", vec!["grep", "-r", "vllm"]),
        ("/usr/bin/bash", vec!["bash", "-c", "vllm serve m"]),
        (
            "/usr/bin/bash",
            vec!["/bin/bash", "/entry.sh", "vllm", "serve"],
        ),
        (
            PYTHON,
            vec!["/v/bin/python", "/v/bin/pip", "install", "vllm"],
        ),
        (
            PYTHON,
            vec![
                "/v/bin/python",
                "/v/bin/vllm",
                "bench",
                "serve",
                "--model",
                "m",
            ],
        ),
        (
            PYTHON,
            vec!["/v/bin/python", "/v/bin/vllm", "serve", "--help"],
        ),
        (PYTHON, vec!["/v/bin/python", "/v/bin/vllm", "chat"]),
        (PYTHON, vec!["/v/bin/python", "/v/bin/vllm"]),
        (PYTHON, vec!["python", "train.py"]),
        (PYTHON, vec!["python", "-c", "import vllm", "serve"]),
        (
            PYTHON,
            vec![
                "python",
                "-c",
                "from multiprocessing.spawn import spawn_main; spawn_main()",
                "--multiprocessing-fork",
            ],
        ),
        (
            PYTHON,
            vec![
                "python",
                "-m",
                "pytest",
                "vllm.entrypoints.openai.api_server",
            ],
        ),
        (PYTHON, vec!["python", "-m", "sglang.bench_serving"]),
        (
            PYTHON,
            vec!["python", "/v/bin/litellm-proxy", "models", "list"],
        ),
        (PYTHON, vec!["python", "/v/bin/litellm", "--version"]),
        (
            PYTHON,
            vec!["python", "app.py", "litellm.proxy.proxy_server:app"],
        ),
        ("/usr/bin/tail", vec!["tail", "-f", "VLLM::EngineCore"]),
        ("/usr/bin/sleep", vec!["VLLM::APIServer", "100"]),
        ("/opt/llama-server", vec!["llama-server", "--version"]),
        ("/opt/llama-server", vec!["cat", "-m", "x"]),
        ("/usr/bin/curl", vec!["llama-server", "-m", "x"]),
        ("/usr/bin/cp", vec!["cp", "nginx", "envoy"]),
        ("", vec![]),
        (PYTHON, vec!["python"]),
    ] {
        let comm = cmdline
            .first()
            .copied()
            .unwrap_or("x")
            .rsplit('/')
            .next()
            .unwrap_or("x")
            .to_owned();
        assert_eq!(
            is(&process(exe, &comm[..comm.len().min(15)], &cmdline, &vllm)),
            None,
            "{exe} {cmdline:?}"
        );
    }
}

#[test]
fn models_come_from_the_command_line() {
    assert_eq!(
        models(
            Engine::Vllm,
            "python /b/vllm serve models/smol --served-model-name a b --port 1"
        ),
        ["a", "b"]
    );
    assert_eq!(
        models(
            Engine::Vllm,
            "python /b/vllm serve org/m --lora-modules x=/p {\"name\":\"y\",\"path\":\"/q\"} --port 1"
        ),
        ["org/m", "x", "y"]
    );
    assert_eq!(
        models(
            Engine::Vllm,
            "python -m vllm.entrypoints.openai.api_server --model=org/m"
        ),
        ["org/m"]
    );
    assert!(models(Engine::Vllm, "python /b/vllm serve --port 1").is_empty());
    assert!(models(Engine::Vllm, "VLLM::APIServer").is_empty());
    assert_eq!(
        models(
            Engine::Sglang,
            "python -m sglang.launch_server --model-path models/tiny --served-model-name tiny"
        ),
        ["tiny"]
    );
    assert_eq!(
        models(
            Engine::LlamaCpp,
            "llama-server -m models/smollm2.gguf -a smollm2,alias"
        ),
        ["smollm2", "alias"]
    );
    assert_eq!(
        models(Engine::LlamaCpp, "llama-server -m models/smollm2.gguf"),
        ["smollm2.gguf"]
    );
    assert_eq!(
        models(Engine::LlamaCpp, "llama-server -hf org/m:Q4"),
        ["org/m:Q4"]
    );
    assert_eq!(
        models(
            Engine::TensorRtLlm,
            "python /b/trtllm-serve /models/llama/ --port 1"
        ),
        ["llama"]
    );
    assert_eq!(
        models(Engine::TensorRtLlm, "python /b/trtllm-serve serve org/m"),
        ["org/m"]
    );
    assert_eq!(
        models(Engine::Mstar, "python /b/mstar serve omni"),
        ["omni"]
    );
    assert!(models(Engine::Smg, "smg launch --worker-urls x --model-path m").is_empty());
    assert_eq!(
        models(
            Engine::Vllm,
            "python /b/vllm serve m --served-model-name a a"
        ),
        ["a"]
    );
    assert!(
        models(
            Engine::Vllm,
            &format!("python /b/vllm serve {}", "m".repeat(300))
        )
        .is_empty()
    );
}

#[test]
fn requests_are_classified() {
    use Class::{Control, Inference, Other, Probe};
    for (engine, method, path, class, route) in [
        (
            Engine::Vllm,
            Method::Post,
            "/v1/chat/completions",
            Inference,
            "/v1/chat/completions",
        ),
        (
            Engine::Vllm,
            Method::Post,
            "/v1/embeddings/",
            Inference,
            "/v1/embeddings",
        ),
        (
            Engine::Vllm,
            Method::Get,
            "/v1/responses/resp_abc",
            Control,
            "/v1/responses/{id}",
        ),
        (
            Engine::Vllm,
            Method::Get,
            "/v1/models",
            Control,
            "/v1/models",
        ),
        (
            Engine::Vllm,
            Method::Post,
            "/tokenize",
            Control,
            "/tokenize",
        ),
        (Engine::Vllm, Method::Get, "/health", Probe, "/health"),
        (
            Engine::Vllm,
            Method::Options,
            "/v1/chat/completions",
            Probe,
            "/v1/chat/completions",
        ),
        (Engine::Vllm, Method::Get, "/secret/path", Other, "other"),
        (Engine::Vllm, Method::Post, "/", Other, "other"),
        (
            Engine::Sglang,
            Method::Post,
            "/generate",
            Inference,
            "/generate",
        ),
        (
            Engine::Sglang,
            Method::Get,
            "/health_generate",
            Probe,
            "/health_generate",
        ),
        (
            Engine::LlamaCpp,
            Method::Post,
            "/completion",
            Inference,
            "/completion",
        ),
        (
            Engine::LlamaCpp,
            Method::Get,
            "/slots/3",
            Control,
            "/slots/{id}",
        ),
        (Engine::MindIe, Method::Post, "/", Inference, "/"),
        (Engine::MindIe, Method::Get, "/", Other, "other"),
        (
            Engine::MindIe,
            Method::Post,
            "/v2/models/llama/generate_stream",
            Inference,
            "/v2/models/{model}/generate_stream",
        ),
        (Engine::MindIe, Method::Get, "/dresult", Control, "/dresult"),
        (
            Engine::Mstar,
            Method::Get,
            "/generate/ws",
            Other,
            "/generate/ws",
        ),
        (
            Engine::Smg,
            Method::Post,
            "/v1/messages",
            Inference,
            "/v1/messages",
        ),
        (
            Engine::Smg,
            Method::Post,
            "/generate",
            Inference,
            "/generate",
        ),
        (
            Engine::LiteLlm,
            Method::Post,
            "/chat/completions",
            Inference,
            "/chat/completions",
        ),
        (
            Engine::LiteLlm,
            Method::Post,
            "/key/generate",
            Control,
            "/key/{path}",
        ),
        (
            Engine::LiteLlm,
            Method::Get,
            "/health/liveliness",
            Probe,
            "/health/liveliness",
        ),
        (
            Engine::ModelExpress,
            Method::Post,
            "/model_express.p2p.P2pService/ListSources",
            Control,
            "/model_express.p2p.P2pService/ListSources",
        ),
        (
            Engine::Nginx,
            Method::Post,
            "/v1/completions",
            Inference,
            "/v1/completions",
        ),
        (
            Engine::OpenAi,
            Method::Post,
            "/v1/completions",
            Inference,
            "/v1/completions",
        ),
    ] {
        let found = classify(engine, method, path);
        assert_eq!(
            (found.class, found.route),
            (class, route),
            "{engine:?} {path}"
        );
    }
    assert!(classify(Engine::Vllm, Method::Post, "/v1/completions").streams);
    assert!(!classify(Engine::Vllm, Method::Post, "/v1/embeddings").streams);
}

#[test]
fn a_health_checker_s_request_is_a_probe() {
    let head =
        parse_request_head(b"GET / HTTP/1.1\r\nUser-Agent: kube-probe/1.31\r\n\r\n").expect("head");
    assert_eq!(classify_head(Engine::Vllm, &head).class, Class::Probe);
    let head = parse_request_head(b"GET / HTTP/1.1\r\nUser-Agent: curl/8\r\n\r\n").expect("head");
    assert_eq!(classify_head(Engine::Vllm, &head).class, Class::Other);
}

#[test]
fn only_telling_routes_show_an_engine() {
    assert!(is_inference_route(Method::Post, "/v1/chat/completions"));
    assert!(is_inference_route(Method::Post, "/v1/messages"));
    assert!(!is_inference_route(Method::Get, "/v1/chat/completions"));
    assert!(!is_inference_route(Method::Get, "/v1/models"));
    assert!(!is_inference_route(Method::Post, "/generate"));
    assert!(!is_inference_route(Method::Post, "/score"));
    assert!(!is_inference_route(Method::Post, "/"));
}

#[test]
fn statuses_become_outcomes() {
    for (status, error, expected) in [
        (200, None, Outcome::Success),
        (101, None, Outcome::Success),
        (304, None, Outcome::Success),
        (200, Some("server_error"), Outcome::Error),
        (200, Some("timeout_error"), Outcome::Timeout),
        (400, Some("other"), Outcome::Refused),
        (404, None, Outcome::Refused),
        (408, None, Outcome::Timeout),
        (429, Some("rate_limit_error"), Outcome::Refused),
        (499, None, Outcome::Abort),
        (500, None, Outcome::Error),
        (500, Some("timeout"), Outcome::Timeout),
        (503, Some("overloaded_error"), Outcome::Error),
        (504, None, Outcome::Timeout),
        (529, None, Outcome::Error),
    ] {
        assert_eq!(
            outcome_of_status(status, error),
            expected,
            "{status} {error:?}"
        );
    }
}

#[test]
fn every_engine_has_one_profile_and_clean_routes() {
    for engine in Engine::ALL {
        assert_eq!(
            PROFILES
                .iter()
                .filter(|profile| profile.engine == *engine)
                .count(),
            1,
            "{engine:?}"
        );
        for route in routes_of(*engine) {
            assert!(route == "other" || route.starts_with('/'), "{route}");
            assert!(route == "/" || !route.ends_with('/'), "{route}");
            assert!(!route.contains('?'), "{route}");
        }
    }
}
