"""Chat templates that mark the turns of a conversation in ways of their own."""

# As Mistral 7B v0.3 has it, in fewer words.
MISTRAL = """
{%- set asked = messages | selectattr('role', 'equalto', 'user') | list %}
{%- set ns = namespace(count=0) %}
{%- for message in messages if message.role == 'user'
        or message.role == 'assistant' and message.tool_calls is not defined %}
    {%- if (message.role == 'user') != (ns.count % 2 == 0) %}
        {{- raise_exception('After the optional system message, roles must alternate') }}
    {%- endif %}
    {%- set ns.count = ns.count + 1 %}
{%- endfor %}
{{- bos_token }}
{%- for message in messages %}
    {%- if message.role == 'user' %}
        {%- if tools and message == asked[-1] %}
            {{- '[AVAILABLE_TOOLS] ' + tools | tojson + '[/AVAILABLE_TOOLS]' }}
        {%- endif %}
        {{- '[INST] ' + message.content + '[/INST]' }}
    {%- elif message.tool_calls is defined %}
        {{- '[TOOL_CALLS] [' }}
        {%- for call in message.tool_calls %}
            {{- call.function | tojson + ('' if loop.last else ', ') }}
        {%- endfor %}
        {{- ']' + eos_token }}
    {%- elif message.role == 'assistant' %}
        {{- ' ' + message.content + eos_token }}
    {%- elif message.role == 'tool' %}
        {{- '[TOOL_RESULTS] {"content": ' + message.content + '}[/TOOL_RESULTS]' }}
    {%- endif %}
{%- endfor %}
"""

# As gpt-oss has it: what was called by then is the name of who answers.
GPT_OSS = """
{%- set ns = namespace(called=none) %}
{%- for message in messages %}
    {%- if message.role == 'assistant' and message.tool_calls %}
        {%- if message.content %}
            {{- '<|start|>assistant<|channel|>analysis<|message|>' + message.content + '<|end|>' }}
        {%- endif %}
        {%- set ns.called = message.tool_calls[0].function.name %}
        {{- '<|start|>assistant to=functions.' + ns.called + '<|channel|>commentary json' }}
        {{- '<|message|>' + message.tool_calls[0].function.arguments | tojson + '<|call|>' }}
    {%- elif message.role == 'assistant' %}
        {{- '<|start|>assistant<|channel|>final<|message|>' + message.content }}
        {{- '<|return|>' if loop.last and not add_generation_prompt else '<|end|>' }}
        {%- set ns.called = none %}
    {%- elif message.role == 'tool' %}
        {%- if ns.called is none %}
            {{- raise_exception('Message has tool role, but no call was made') }}
        {%- endif %}
        {{- '<|start|>functions.' + ns.called + '<|message|>' + message.content + '<|end|>' }}
    {%- else %}
        {{- '<|start|>' + message.role + '<|message|>' + message.content + '<|end|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start|>assistant' }}
{%- endif %}
"""

# As Qwen 3 has it: the last turn has a thought, be it an empty one; earlier thoughts are left out.
QWEN3 = """
{%- for message in messages %}
    {%- set thought, content = message.reasoning_content or '', message.content %}
    {%- if '</think>' in content %}
        {%- set thought = content.split('</think>')[0].split('<think>')[-1].strip('\n') %}
        {%- set content = content.split('</think>')[-1].lstrip('\n') %}
    {%- endif %}
    {{- '<|im_start|>' + message.role + '\n' }}
    {%- if message.role == 'assistant' and loop.last %}
        {{- '<think>\n' + thought + '\n</think>\n\n' }}
    {%- endif %}
    {{- content + '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
    {{- '<think>\n\n</think>\n\n' if enable_thinking is false }}
{%- endif %}
"""

# As DeepSeek R1 has it: the prompt has a thought begin that the text leaves out.
DEEPSEEK = """
{{- bos_token }}
{%- for message in messages %}
    {%- if message.role == 'assistant' %}
        {{- '<|Assistant|>' + message.content.split('</think>')[-1] + '<|im_end|>' }}
    {%- else %}
        {{- '<|User|>' + message.content }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|Assistant|><think>\n' }}
{%- endif %}
"""

ONLY_THE_LAST_STOPS = """
{%- for message in messages %}
    {{- message.role + ': ' + message.content }}
    {{- '\n' if message.role != 'assistant' }}
    {%- if message.role == 'assistant' and (loop.last or loop.nextitem.role != 'assistant') %}
        {{- '<|im_end|>\n' }}
    {%- endif %}
{%- endfor %}
"""

# As Gemma 3 has it: the system message is the beginning of the first question.
GEMMA3 = """
{{- bos_token }}
{%- set system = '' %}
{%- if messages[0].role == 'system' %}
    {%- set system = messages[0].content + '\n\n' %}
    {%- set messages = messages[1:] %}
{%- endif %}
{%- for message in messages %}
    {%- if (message.role == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('Conversation roles must alternate user/assistant/user/...') }}
    {%- endif %}
    {{- '<start_of_turn>' + ('model' if message.role == 'assistant' else message.role) + '\n' }}
    {{- system if loop.first }}
    {{- message.content | trim + '<end_of_turn>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<start_of_turn>model\n' }}
{%- endif %}
"""
