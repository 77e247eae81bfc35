"""The page of ``vlmplan web``: its files, and the server that hands them out on this machine alone

files    the files of the page
export   the same with the planner itself, for any server of files
bytecode what that planner is compiled to, by the Python that will run it (bytecode.mjs starts it)
server   HTTP on 127.0.0.1: those files, and answers to what the page asks
"""

# pyright: reportUnusedImport=false
from vlmplan.web.server import open_server
