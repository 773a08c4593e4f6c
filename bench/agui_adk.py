"""The same chat, served by ag-ui-adk: 50 pieces of a scripted model. `python agui_adk.py PORT`."""

import sys

import uvicorn
from ag_ui_adk import ADKAgent, add_adk_fastapi_endpoint
from fastapi import FastAPI
from google.adk.agents import LlmAgent
from google.adk.models import BaseLlm
from google.adk.models.llm_response import LlmResponse
from google.genai import types


class Scripted(BaseLlm):
    async def generate_content_async(self, llm_request, stream=False):
        def said(text):
            return types.Content(role="model", parts=[types.Part(text=text)])

        for _ in range(50):
            yield LlmResponse(content=said("sunny ok "), partial=True)
        yield LlmResponse(content=said("sunny ok " * 50), partial=False)


agent = LlmAgent(name="chat", model=Scripted(model="scripted"), instruction="You are a helpful weather assistant.")
app = FastAPI()
add_adk_fastapi_endpoint(app, ADKAgent(adk_agent=agent, app_name="bench", user_id="user", max_concurrent_executions=1000), path="/chat")
uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="warning")
