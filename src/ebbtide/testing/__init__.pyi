from .metadata_server import MetadataServer as MetadataServer
from .scripted import Scripted as Scripted
from .scripted import replay as replay
