import asyncio, random, time
from grpc import aio
from sandbox_adapter.v1 import session_pb2, tool_pb2
from sandboxd.errors import *
from sandboxd.backends.fake import FakeBackend
from tests.unit.worker import running, until
import pytest, sandboxd.sessions.starts as st
@pytest.mark.timeout(120)
@pytest.mark.parametrize("seed", range(6))
async def test_fuzz(tmp_path, seed, monkeypatch):
    monkeypatch.setattr(st,"RESTART_PAUSE_S",0.01); monkeypatch.setattr(EngineDown,"retry_s",0.02)
    rnd=random.Random(seed); backend=FakeBackend(tmp_path)
    codes={}; hung=[]
    orig=backend._step
    async def step(name, rid):
        await asyncio.sleep(rnd.random()*0.02)
        r=rnd.random()
        if name in("create","remove","release","adopt","owned"):
            if r<0.05: raise EngineDown("x")
            if r<0.08 and name in("remove","release"): raise SandboxdError("busy")
            if r<0.10 and name=="create": raise CreateFailed("START_FAILED","no")
            if r<0.12 and name=="owned": raise RuntimeError("owned")
        await orig(name, rid)
    backend._step=step
    for life in range(3):
        async with running(tmp_path, backend, sessions_max=30, sweep_interval_s=0.05) as w:
            guest=w.guest
            async def slow(req, inner=guest.answer):
                if req.op in("probe","poke"): await asyncio.sleep(rnd.random()*0.05)
                return await inner(req)
            backend.on_request=slow
            sw=asyncio.create_task(w.parts.sweeper.run())
            end=time.monotonic()+3
            async def one(a, limit=20):
                try:
                    async with asyncio.timeout(limit): return await a
                except aio.AioRpcError as e: codes[(e.code().name)]=codes.get(e.code().name,0)+1
                except asyncio.CancelledError:
                    if asyncio.current_task().cancelling(): raise
                except TimeoutError: hung.append(a)
            async def client(k):
                while time.monotonic()<end:
                    sid=f"s{life}-{rnd.randrange(12)}"; cid=f"c{rnd.randrange(20)}"; r=rnd.random()
                    if r<0.2: await one(w.create(sid))
                    elif r<0.3: await one(w.delete(sid))
                    elif r<0.4: await one(w.sessions.UpdateSession(session_pb2.UpdateSessionRequest(session_id=sid,labels={"a":str(rnd.random())},epoch=rnd.randrange(3) if rnd.random()<.2 else None)))
                    elif r<0.5: await one(w.tools.CancelCall(tool_pb2.CancelCallRequest(session_id=sid,call_id=cid)))
                    elif r<0.6:
                        call=w.call(cid,session_id=sid,cancel_on_disconnect=rnd.random()<.5)
                        await asyncio.sleep(rnd.random()*0.03); call.cancel(); await one(call)
                    elif r<0.63:
                        for s in list(backend.running.values()):
                            if rnd.random()<0.1: s.lose(rnd.choice(["ENDED","SILENT","PROTOCOL"]))
                    else: await one(w.call(cid,session_id=sid))
            await asyncio.gather(*(client(k) for k in range(24)))
            assert not sw.done(), sw
            assert not hung
            for s in w.parts.directory.all(): assert not s.calls or True
            await until(lambda: all(not l.calls for l in w.parts.directory.all()))
            ghosts=[l.session_id for l in w.parts.directory.all() if l.record.state.value in("READY","RESTARTING") and (l.life_task is None or l.life_task.done()) and l.end_cause is None]
            assert not ghosts
            if life==2:
                backend._step=orig
                for l in w.parts.directory.all(): await one(w.delete(l.session_id))
                async def gone():
                    return len(w.parts.directory)==0 and not backend.containers and not backend.stores
                await until(gone)
            sw.cancel()
    print(seed, codes)
