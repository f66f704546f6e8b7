"""Three clients, one streamed chat each; prints what each of them saw as one JSON line.

usage: clients.py BASE_URL MODEL [MAX_TOKENS]
"""

import asyncio
import json
import sys

import aiohttp
import httpx
import openai

base, model = sys.argv[1:3]
limit = int(sys.argv[3]) if len(sys.argv) > 3 else 8
url = base + "/v1/chat/completions"
body = {
    "model": model,
    "messages": [{"role": "user", "content": "Say hello."}],
    "max_tokens": limit,
    "stream": True,
    "stream_options": {"include_usage": True},
}


def report(client, events, usage):
    print(json.dumps({"client": client, "events": events, "usage": usage}), flush=True)


def usage_of(lines):
    """The last usage object of the data lines, without [DONE]."""
    found = None
    for line in lines:
        if line != "data: [DONE]":
            found = json.loads(line[len("data: ") :]).get("usage") or found
    return found


def with_openai():
    sdk = openai.OpenAI(base_url=base + "/v1", api_key="none")
    chunks = list(sdk.chat.completions.create(**body))
    usage = [c.usage for c in chunks if c.usage]
    # The SDK swallows [DONE].
    report("openai", len(chunks) + 1, usage[-1].model_dump() if usage else None)


def with_httpx():
    with httpx.stream("POST", url, json=body, timeout=60) as reply:
        lines = [line for line in reply.iter_lines() if line.startswith("data:")]
    report("httpx", len(lines), usage_of(lines))


async def with_aiohttp():
    async with aiohttp.ClientSession() as session, session.post(url, json=body) as reply:
        lines = [line.decode().strip() async for line in reply.content]
    lines = [line for line in lines if line.startswith("data:")]
    report("aiohttp", len(lines), usage_of(lines))


with_openai()
with_httpx()
asyncio.run(with_aiohttp())
